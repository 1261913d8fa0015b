"""Texts of JSON lines to train on, and what is made of them."""

from __future__ import annotations

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.train import read_texts, train_word_piece
from megads.errors import DataError
from tests.data.tokenizers.vocabularies import PROSE, TRAINING


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
        (r'{"text": ["\u00e9", "a\ud800b"]}', r"object 1: 'text' holds half of a surrogate pair"),
    ]:
        bad.write_text(content)
        with pytest.raises(DataError, match=expected):
            list(read_texts([str(bad)], ["text"]))
    bad.write_text(r'{"text": "a", "other": [Infinity, NaN, "\ud800"]}')
    assert list(read_texts([str(bad)], ["text"])) == ["a"]  # as `megads data preprocess`
    bad.write_text('{"a": "x"}\n{"b": "y", "a": ["z"]}\n{"c": 1}')
    texts = read_texts([str(bad)], ["a", "b"])
    assert [next(texts) for _ in range(3)] == ["x", "z", "y"]
    with pytest.raises(DataError, match=r"object 3: has no text under 'a' or 'b'"):
        next(texts)
    with pytest.raises(DataError, match=r"second\.jsonl: no such file"):
        next(read_texts([str(bad), str(tmp_path / "second.jsonl")], ["a"]))  # before the first is read


@pytest.mark.parametrize("lower_case", [True, False])
def test_pieces_of_words_are_the_same_every_time(lower_case, tmp_path):
    """The library itself draws their numbers, and with them which of two equally frequent pairs it takes."""
    texts = [text[:2000] for text in TRAINING]
    vocabs = [train_word_piece(texts, 500, lower_case=lower_case).get_vocab() for _ in range(3)]
    assert vocabs[0] == vocabs[1] == vocabs[2]
    names = sorted(vocabs[0], key=vocabs[0].get)
    assert names[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(names) == 500
    assert ("T" in names) != lower_case
    (tmp_path / "vocab.txt").write_text("".join(f"{name}\n" for name in names))
    kind = "BertWordPieceLowerCase" if lower_case else "BertWordPieceCase"
    ours = make_tokenizer(TokenizerSpec(kind, vocab_file=str(tmp_path / "vocab.txt")))
    theirs = train_word_piece(texts, 500, lower_case=lower_case)
    for text in texts[:20]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
