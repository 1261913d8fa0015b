"""Texts of JSON lines to train on, and what is made of them."""

from __future__ import annotations

import pytest

from megads.data.tokenizers.train import read_texts
from megads.errors import DataError
from tests.data.tokenizers.vocabularies import PROSE


def test_texts_are_read_up_to_a_size(corpus):
    assert list(read_texts(corpus, ["text"], most_bytes=10)) == [PROSE[0][:2000]]
    assert len(list(read_texts(corpus, ["text", "title"]))) == 3 * len(PROSE)


def test_what_is_wrong_is_told_in_one_line(corpus, tmp_path):
    bad = tmp_path / "bad.jsonl"
    for content, expected in [
        ('{"text": "a"}\n{"text"', r"bad.jsonl: object 2: is not JSON"),
        ('{"txt": "a"}', r"object 1: has no text under 'text'; name the key of the texts with --json-keys"),
        ('{"text": 5}', r"has no text under 'text'"),
        ("[1]", r"has no text under 'text'"),
    ]:
        bad.write_text(content)
        with pytest.raises(DataError, match=expected):
            list(read_texts([str(bad)], ["text"]))
    bad.write_text('{"a": "x"}\n{"b": "y", "a": ["z"]}\n{"c": 1}')
    texts = read_texts([str(bad)], ["a", "b"])
    assert [next(texts) for _ in range(3)] == ["x", "z", "y"]
    with pytest.raises(DataError, match=r"object 3: has no text under 'a' or 'b'"):
        next(texts)
    with pytest.raises(DataError, match=r"second\.jsonl: no such file"):
        next(read_texts([str(bad), str(tmp_path / "second.jsonl")], ["a"]))  # before the first is read
