"""Help as Markdown."""

import pytest

from megads.text.markdown import cell


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ("a  b", "a b"),
        ("runs/<name>; empty: none", r"runs/\<name>; empty: none"),
        ("part-*.jsonl or [x>=1]", r"part-\*.jsonl or \[x>=1\]"),
        ("as --one-two, or `--three <x>`", "as `--one-two`, or `--three <x>`"),
        ("auto|on `a|b`", r"auto\|on `a\|b`"),
        ("mp_rank_00, _x_", r"mp_rank_00, \_x\_"),
        ("a -- b, runs/--x", "a -- b, runs/--x"),
    ],
)
def test_what_markdown_would_take_is_text(says, text):
    assert cell(says) == text
