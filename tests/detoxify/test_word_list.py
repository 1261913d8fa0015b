"""The stub: it counts words."""

from __future__ import annotations

import pytest

from megads.detoxify.word_list import WORDS, WordList
from megads.errors import ConfigError


def test_every_word_of_the_list_halves_what_is_left():
    texts = ["", "nice", "Stupid!", "stupid, STUPID", "you idiot: shut up, ugly", "stupidity", "idiot_s"]
    assert [each["toxicity"] for each in WordList().score(texts)] == [0, 0, 0.5, 0.75, 0.875, 0, 0]


def test_a_list_of_the_user(tmp_path):
    path = tmp_path / "words"
    path.write_text("Self\n\n\u00c4rger the\n")
    scorer = WordList(path)
    assert [each["toxicity"] for each in scorer.score(["self \u00e4rger", "THE stupid", "th\u0435"])] == [0.75, 0.5, 0]
    assert scorer.about() == {"scorer": "stub", "words": ["self", "the", "\u00e4rger"]}
    assert WordList().about()["words"] == sorted(WORDS)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\n", "has no word"), (b"a\nb-c\n", "'b-c' is not a word"), (b"\xff", "byte 0 is not UTF-8")],
)
def test_lists_that_are_wrong(tmp_path, content, words):
    (tmp_path / "words").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        WordList(tmp_path / "words")
    with pytest.raises(ConfigError, match=r"--words .*none: No such file"):
        WordList(tmp_path / "none")
