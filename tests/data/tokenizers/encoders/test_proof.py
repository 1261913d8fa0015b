"""The built-in sample finds differences; what came out is kept for this tokenizer and these libraries only."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.encoders import fastest, libraries, proof
from megads.data.tokenizers.encoders.fastest import choose_encoder
from megads.data.tokenizers.encoders.libraries import BatchEncoder
from megads.data.tokenizers.encoders.proof import adversarial

DAMAGES = {
    "drops the empty text's prefix": lambda text: not text,
    "takes special tokens for text": lambda text: "<|end_of_text|>" in text,
    "composes marks": lambda text: "e\u0301" in text,
    "breaks on long runs": lambda text: len(text) > 2000,
    "turns CRLF to LF": lambda text: "\r\n" in text,
    "knows no astral characters": lambda text: any(char > "\uffff" for char in text),
    "drops NUL": lambda text: "\0" in text,
    "splits digits otherwise": lambda text: "12345678901234567890" in text,
    "merges runs of blanks": lambda text: "a" + " " * 9 + "b" in text,
    "knows no Tibetan": lambda text: "\u0f40" in text,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_built_in_sample_finds_planted_differences(specs, proved, monkeypatch, damage):
    """Each planted library is wrong on one kind of text only."""
    expected = dict(proved)

    def wrong(tokenizer) -> BatchEncoder:
        return BatchEncoder(
            damage, lambda batch: libraries.pack([[7] if DAMAGES[damage](text) else expected[text] for text in batch])
        )

    for name in ("fastokens", "kitoken"):
        monkeypatch.setitem(fastest.ENCODERS, name, wrong)
    choice = choose_encoder(make_tokenizer(specs["llama3-json"]), ["plain text"])
    assert choice.name == "tokenizers"
    assert f"{damage} gives different ids" in choice.reason


def test_the_sample_holds_this_vocabularys_tokens_in_odd_places(specs):
    texts = adversarial(make_tokenizer(specs["llama3-json"]))
    assert {"<|begin_of_text|>", "<|begin_of_text|><|begin_of_text|>", "a<|end_of_text|>b", "<|end_of_text|"} <= set(
        texts
    )
    assert texts == adversarial(make_tokenizer(specs["llama3-json"])), "the same every time"
    assert "" in texts


@pytest.fixture
def counted(specs, monkeypatch):
    """Return how often the built-in sample was encoded by the original; it is three texts here."""
    calls: list[int] = []
    monkeypatch.setattr(
        fastest, "adversarial", lambda tokenizer: calls.append(1) or ["a b", "don't", "<|end_of_text|>"]
    )
    return calls


def test_the_proof_of_a_tokenizer_is_kept(specs, counted, tmp_path):
    tokenizer = make_tokenizer(specs["llama3-json"])
    first = choose_encoder(tokenizer, ["my text"], proofs=tmp_path / "new")
    again = choose_encoder(tokenizer, ["my text"], proofs=tmp_path / "new")
    assert (len(counted), first.name, again.name) == (1, "fastokens", "fastokens")
    assert again.reason == f"{first.reason}, most of them at an earlier start"
    choose_encoder(make_tokenizer(specs["gpt2-json"]), ["my text"], proofs=tmp_path / "new")
    assert len(counted) == 2, "another tokenizer"
    choose_encoder(tokenizer, ["my text"])
    assert len(counted) == 3, "nothing is kept"
    assert choose_encoder(tokenizer, [], proofs=Path("/proc/none")).name == "fastokens"


@pytest.mark.parametrize("change", ["library", "original", "program", "flip", "cut", "empty", "list"])
def test_a_proof_of_something_else_is_made_again(specs, counted, tmp_path, monkeypatch, change):
    tokenizer = make_tokenizer(specs["llama3-json"])
    choose_encoder(tokenizer, [], proofs=tmp_path)
    (kept,) = tmp_path.iterdir()
    content = kept.read_bytes()
    if change == "library":
        made = fastest.ENCODERS["fastokens"]
        monkeypatch.setitem(fastest.ENCODERS, "fastokens", lambda t: replace(made(t), name="fastokens 99"))
    elif change == "original":
        monkeypatch.setattr(proof, "_ORIGINALS", ("numpy",))
    elif change == "program":
        monkeypatch.setattr(proof, "_PROGRAM", (__file__,))
    else:
        place = content.index(b'"texts": ') + 9
        bad = {"flip": content[:place] + b"8" + content[place + 1 :], "cut": content[:-9], "empty": b"", "list": b"[]"}
        kept.write_bytes(bad[change])
    assert choose_encoder(tokenizer, [], proofs=tmp_path).name == "fastokens"
    assert len(counted) == 2
    if change in ("flip", "cut", "empty", "list"):
        assert kept.read_bytes() == content


def test_a_library_that_failed_is_not_tried_on_the_sample_again(specs, counted, tmp_path, monkeypatch):
    tokenizer = make_tokenizer(specs["llama3-json"])
    made = fastest.ENCODERS["fastokens"](tokenizer)
    calls = []

    def wrong(texts):
        calls.append(len(texts))
        ids, offsets = made.run(texts)
        return (ids + 1 if len(texts) > 1 else ids), offsets

    monkeypatch.setitem(fastest.ENCODERS, "fastokens", lambda tokenizer: replace(made, run=wrong))
    for _ in range(2):
        choice = choose_encoder(tokenizer, ["one"], proofs=tmp_path)
        assert choice.name == "kitoken"
    assert calls == [1, 3, 1], "the user's texts are compared every time"


def test_a_failure_of_the_moment_is_not_kept(specs, counted, tmp_path, monkeypatch):
    tokenizer = make_tokenizer(specs["llama3-json"])
    made = fastest.ENCODERS["fastokens"](tokenizer)

    def failing(texts):
        raise MemoryError("no memory left for a thread")

    with monkeypatch.context() as moment:
        moment.setitem(fastest.ENCODERS, "fastokens", lambda tokenizer: replace(made, run=failing))
        assert choose_encoder(tokenizer, [], proofs=tmp_path).name == "kitoken"
    assert choose_encoder(tokenizer, [], proofs=tmp_path).name == "fastokens"


def test_a_pipe_among_the_proofs_is_no_proof(specs, counted, tmp_path):
    tokenizer = make_tokenizer(specs["llama3-json"])
    choose_encoder(tokenizer, [], proofs=tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.unlink()
    os.mkfifo(kept)
    assert choose_encoder(tokenizer, [], proofs=tmp_path).name == "fastokens"
