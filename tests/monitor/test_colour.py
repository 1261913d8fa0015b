"""Colours: on a terminal only, and the text without them is the same."""

import io
import re

import pytest

from megads.monitor.colour import coloured, may_colour


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "env", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_only_terminals_whose_user_has_not_said_no(monkeypatch, stream, env, expected):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert may_colour(stream) is expected


@pytest.mark.parametrize(
    "text",
    [
        "run      7B in runs/7B\nlayout   2 ranks",
        "step  7/200 | loss  5.4321 | lr 2.00e-04 | SKIPPED, gradient is NaN or Inf",
        "megads: a note",
        "sentences of any length",
    ],
)
def test_without_its_codes_a_line_is_what_it_was(text):
    shown = coloured(text)
    assert re.sub(r"\x1b\[\d*m", "", shown) == text
    assert ("\x1b" in shown) == ("sentences" not in text)
