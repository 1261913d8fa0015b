"""Sentences without a model."""

from __future__ import annotations

import pytest

from megads.data.preprocess.input.sentence_rules import cut, ends_by_rules, ends_of_lines

TEXT = 'Dr. Smith came.  He met J. Doe (see Fig. 3). "Why?" Mr. Bean asked! 3 of 4 left at 5 p.m. yesterday.\n\nthe end'


def test_rules():
    assert cut(TEXT, ends_by_rules(TEXT), keep_newlines=False) == [
        "Dr. Smith came.",
        "He met J. Doe (see Fig. 3).",
        '"Why?"',
        "Mr. Bean asked!",
        "3 of 4 left at 5 p.m. yesterday.",
        "the end",
    ]
    kept = cut(TEXT, ends_by_rules(TEXT), keep_newlines=True)
    assert "".join(kept) == TEXT
    assert kept[0] == "Dr. Smith came.  "


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n ", []),
        ("one", ["one"]),
        ("Version 3.11 is out. e.g. this", ["Version 3.11 is out. e.g. this"]),
        ("He wrote (in full.) Then he left.", ["He wrote (in full.)", "Then he left."]),
        ("Wait... What", ["Wait...", "What"]),
        ("a line\nof one sentence", ["a line\nof one sentence"]),
        ("\u4f60\u597d\u3002\u518d\u89c1\uff01 ok", ["\u4f60\u597d\u3002", "\u518d\u89c1\uff01", "ok"]),
    ],
)
def test_what_ends_a_sentence(text, sentences):
    assert cut(text, ends_by_rules(text), keep_newlines=False) == sentences
    assert "".join(cut(text, ends_by_rules(text), keep_newlines=True)) == (text if text.strip() else "")


def test_lines():
    assert cut("a. B\n\n c\r\nd", ends_of_lines("a. B\n\n c\r\nd"), keep_newlines=False) == ["a. B", "c", "d"]


@pytest.mark.parametrize(
    ("piece", "ends"), [("a", 0), (".", 0), (" ", 0), ("\n ", 1), (".)", 0), (". a", 0), (". A", 1), ("\n \t", 1)]
)
def test_a_long_text_of_one_kind_is_read_once(piece, ends):
    """A rule that reads it again from each of its letters takes hours."""
    assert len(ends_by_rules(300_000 * piece)) == ends
