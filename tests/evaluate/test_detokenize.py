"""Texts of WikiText and the Penn Treebank as Megatron-LM joins their words."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.evaluate.detokenize import detokenizer_of


@pytest.mark.parametrize(
    ("path", "text", "wanted"),
    [
        ("wiki.test.tokens", "a 1 @,@ 000 @-@ mile ( long ) road . \n Next", "a 1,000-mile (long) road.\nNext"),
        ("wiki.test.tokens", " = = Title = = \n x", " == Title ==\nx"),
        ("wiki.test.tokens", 'he said " yes " ; no', 'he said "yes"; no'),
        ("wiki.test.tokens", "the dogs ' s bone 's", "the dogs's bone's"),
        ("wiki.test.tokens", "10 \N{DEGREE SIGN} C", "10\N{DEGREE SIGN}C"),
        ("ptb.test.txt", "it does n't cost $ 1 N times", "it doesn't cost $11 times"),
        ("wiki/lambada.jsonl", "a , b", "a, b"),
        ("lambada.jsonl", "a , b", "a , b"),
        ("books.txt", "a , b", "a , b"),
    ],
)
def test_words_are_joined_by_the_path(path, text, wanted):
    assert detokenizer_of(Path(path))(text) == wanted
