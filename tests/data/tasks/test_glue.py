"""MNLI and QQP as they are published, and broken."""

import pytest

from megads.data.tasks.examples import Example
from megads.data.tasks.glue import read_mnli, read_qqp
from megads.errors import DataError
from tests.data.tasks.files import MNLI_HEAD, mnli_line, write_mnli, write_qqp


def test_mnli_has_premise_hypothesis_and_the_last_column(tmp_path):
    path = write_mnli(
        tmp_path / "m.tsv", [("A  man .", "He.", "neutral"), ("B", "C", "contradiction"), ("D", "E", "entailment")]
    )
    assert read_mnli(path).examples == [
        Example((("A man .", "He."),), 2),
        Example((("B", "C"),), 0),
        Example((("D", "E"),), 1),
    ]


BROKEN = [
    (
        "\t".join("abcdefghij"),
        1,
        "10 columns, a test file without labels; pass it with --test-data, .*",
    ),
    ("a\tb", 1, "2 columns between tabs; expected the head of an MNLI file, with 11 or more"),
    (f"{MNLI_HEAD}\nx", 2, "1 column between tabs; expected 12 as in the head line, .*"),
    (
        f"{MNLI_HEAD}\n{mnli_line(0, 'a', 'b', 'neutral')}".removesuffix("neutral"),
        2,
        "label ''; expected contradiction, entailment, neutral",
    ),
    (f"{MNLI_HEAD}\n{mnli_line(0, 'a', 'b', 'neutral')}\t", 2, "13 columns between tabs; expected 12 .*"),
    (mnli_line(0, "a", "b", "neutral"), 1, "an example in place of the head line; begin the file with .*"),
    (f"{MNLI_HEAD}\n{mnli_line(0, 'a', 'b', '-')}", 2, "label '-'; expected contradiction, entailment, neutral"),
    (
        f"{MNLI_HEAD}\n{mnli_line(0, 'a', 'b', 'neutral')}\n{mnli_line(1, '', 'b', 'neutral')}",
        3,
        "the premise is empty",
    ),
    (f"{MNLI_HEAD}\n{mnli_line(0, 'a', ' ', 'neutral')}", 2, "the hypothesis is empty"),
    (f"{MNLI_HEAD}\n{mnli_line('-1', 'a', 'b', 'neutral')}", 2, "the first column is '-1'; expected the number of .*"),
]


@pytest.mark.parametrize(("text", "line", "why"), BROKEN)
def test_a_broken_mnli_file_is_refused_by_its_line(tmp_path, text, line, why):
    path = tmp_path / "m.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^{path}:{line}: {why}$"):
        read_mnli(str(path))


@pytest.mark.parametrize("read", [read_mnli, read_qqp])
def test_a_head_alone_holds_no_examples(tmp_path, read):
    path = write_mnli(tmp_path / "m.tsv", []) if read is read_mnli else write_qqp(tmp_path / "m.tsv", [])
    with pytest.raises(DataError, match=f"^{path}: has no examples$"):
        read(path)


def test_qqp_skips_the_lines_that_megatron_skips_and_says_how_many(tmp_path):
    lines = ["0\t1\t2\tWho ?\tWhat\t0", "1\t1\t2\tbroken", "2\t1\t2\ta\t\t1", "3\t1\t2\tb\tc\t1"]
    found = read_qqp(write_qqp(tmp_path / "q.tsv", lines))
    assert found.examples == [Example((("Who ?", "What"),), 0), Example((("b", "c"),), 1)]
    assert found.notes == (
        f"{tmp_path / 'q.tsv'}: 2 lines skipped, {tmp_path / 'q.tsv'}:3 first (not 6 columns, or an empty question)",
    )


QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("0\t1\t2\ta\tb\t1", 1, "an example in place of the head line; begin the file with .*"),
        ("id\ta\tb", 1, "3 columns, a test file without labels; pass it with --test-data, .*"),
        ("id\ta", 1, "2 columns between tabs; expected the head of a QQP file, with 6"),
        (f"{QQP_HEAD}\n0\t1\t2\ta\tb\t2", 2, "is_duplicate is '2'; expected 0 or 1"),
        (f"{QQP_HEAD}\nx\t1\t2\ta\tb\t1", 2, "the first column is 'x'; expected the number of the example"),
    ],
)
def test_a_broken_qqp_file_is_refused_by_its_line(tmp_path, text, line, why):
    path = tmp_path / "q.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^{path}:{line}: {why}$"):
        read_qqp(str(path))


def test_a_file_without_labels_is_read_where_none_are_needed(tmp_path):
    line = mnli_line(0, "a  b", "c", "neutral")
    mnli, qqp = tmp_path / "m.tsv", tmp_path / "q.tsv"
    mnli.write_text("".join("\t".join(text.split("\t")[:10]) + "\n" for text in (MNLI_HEAD, line)))
    qqp.write_text("id\tquestion1\tquestion2\n0\twho  ?\twhat\n1\t\tb\n")
    found = read_mnli(str(mnli), needs_labels=False)
    assert (found.examples, found.has_labels) == ([Example((("a b", "c"),), 0)], False)
    found = read_qqp(str(qqp), needs_labels=False)  # every line needs an answer, that with an empty question, too
    assert (found.examples, found.has_labels) == ([Example((("who ?", "what"),), 0), Example((("", "b"),), 0)], False)
    qqp.write_text("id\tquestion1\tquestion2\n0\twho\n")
    with pytest.raises(DataError, match=f"^{qqp}:2: 2 columns between tabs; expected 3 as in the head line$"):
        read_qqp(str(qqp), needs_labels=False)
    labelled = write_mnli(tmp_path / "l.tsv", [("a", "b", "neutral")])
    assert read_mnli(labelled, needs_labels=False) == read_mnli(labelled)
