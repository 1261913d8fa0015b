"""The library that is taken gives the ids of the original; one that differs is never taken.

Found while looking for differences (tokenizers 0.23.3, sentencepiece 0.2.3; 200,000 characters in odd company, random
pieces, program code, translations):

* fastokens 0.3.5, byte-level BPE with the expressions of GPT-2, Llama 3, Qwen (NFC), DeepSeek v1 and v3, and Llama 2's
  tokenizer.json: no difference, but for added tokens that the vocabulary has already (it takes the id the file
  declares, tokenizers the vocabulary's), and for ``<0x60>`` in a text where the vocabulary has no ``6``. It refuses
  Metaspace, BERT's normalizer, NFKC and RobertaProcessing.
* kitoken 0.11.1: GPT-2's expression behind a run of odd blanks (``<NBSP>'server``), NFC of characters of Unicode 16,
  WordPiece with final sigmas and characters without a name, ties of Unigram scores, byte fallback of Unigram models
  (order of bytes), two unknown tokens in a row; it puts nothing around texts and keeps the padding of the file. No
  difference for sentencepiece BPE models.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.encoders import fastest, libraries, proof_cache
from megads.data.tokenizers.encoders.fastest import choose_encoder, encoders, make_encoder
from megads.data.tokenizers.encoders.libraries import BatchEncoder, UnfitError
from megads.data.tokenizers.encoders.proof import adversarial
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import ODD, PROSE, SPECIAL, llama_json, noise, sentence_piece

CHOSEN = {
    "gpt2": "fastokens",
    "gpt2-json": "fastokens",
    "llama3-json": "fastokens",
    "llama2-json": "fastokens",
    "metaspace-json": "fastokens",
    "wordpiece-json": "words",
    "unigram-json": "tokenizers",
    "bert-lower": "words",
    "bert-case": "words",
    "sp": "kitoken",
    "gpt-sp": "kitoken",
    "llama2": "kitoken",
    "sp-unigram": "sentencepiece",
    "gpt-sp-unigram": "sentencepiece",
    "null": "original",
}


def _encode(encoder, texts) -> list[list[int]]:
    ids, offsets = encoder.encode_batch(texts)
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    assert ids.dtype.itemsize == 4
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if len(texts) else []


@pytest.mark.parametrize("name", CHOSEN)
def test_the_library_taken_gives_the_ids_of_the_original(specs, name):
    tokenizer = make_tokenizer(specs[name])
    numbers = ["3 1 4", "", "99"]
    choice = choose_encoder(tokenizer, numbers if name == "null" else PROSE[:2])
    assert choice.name == CHOSEN[name], choice.reason
    assert "\n" not in choice.reason
    texts = numbers if name == "null" else [*ODD, *SPECIAL, *PROSE[2:6], *noise(2, 300)]
    expected = [tokenizer.encode(text) for text in texts]
    assert _encode(choice.encoder, texts) == expected
    assert _encode(make_encoder(tokenizer, choice.name), texts) == expected, "as a worker process makes it"
    assert _encode(choice.encoder, []) == []
    assert _encode(choice.encoder, texts[:1] * 3) == expected[:1] * 3


def test_another_process_makes_the_same(specs):
    for spec in specs.values():
        again = pickle.loads(pickle.dumps(spec))
        assert make_tokenizer(again).fingerprint == make_tokenizer(spec).fingerprint


@pytest.mark.parametrize("name", ["gpt2", "gpt-sp", "bert-lower", "llama3-json"])
def test_half_a_pair_of_surrogates_is_refused_by_every_library(specs, name):
    tokenizer = make_tokenizer(specs[name])
    for library in dict.fromkeys([CHOSEN[name], "kitoken", "tokenizers", "sentencepiece", "words"]):
        try:
            encoder = fastest._make(tokenizer, library)
        except UnfitError:
            continue
        with pytest.raises(DataError, match="half of a surrogate pair"):
            encoder.encode_batch(["good", "a\ud800b"])


def test_a_library_that_differs_is_refused(specs):
    """These differences are real ones; what they are found out by is not in the user's sample."""
    for name in ("gpt2", "wordpiece-json", "unigram-json", "metaspace-json"):
        with pytest.raises(
            ConfigError, match=r"--encoder kitoken: kitoken [\d.]+ gives different ids.*use --encoder auto"
        ):
            choose_encoder(make_tokenizer(specs[name]), ["plain text"], wanted="kitoken")


def test_bytes_spelled_out_in_a_text_are_found_out(tmp_path):
    """fastokens 0.3.5 takes ``<0x60>`` in a text for that byte where the vocabulary lacks one of these characters."""
    model = sentence_piece(tmp_path, required_chars="")
    choice = choose_encoder(make_tokenizer(llama_json(tmp_path, model, metaspace=False)), ["plain text"])
    assert choice.name == "tokenizers"
    assert "fastokens" in choice.reason


@pytest.fixture
def proof(specs, monkeypatch) -> list[tuple[str, list[int]]]:
    """The proof of one tokenizer, made once; the user's sample has nothing odd."""
    if "llama3-json" not in _PROOFS:
        tokenizer = make_tokenizer(specs["llama3-json"])
        _PROOFS["llama3-json"] = fastest._encoded(tokenizer, ["plain text", *adversarial(tokenizer)])
    made = _PROOFS["llama3-json"]
    monkeypatch.setattr(fastest._Trial, "_built_in", made)
    return made


_PROOFS: dict[str, list[tuple[str, list[int]]]] = {}

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
def test_the_built_in_sample_finds_planted_differences(specs, proof, monkeypatch, damage):
    """Each planted library is wrong on one kind of text only."""
    expected = dict(proof)

    def wrong(tokenizer) -> BatchEncoder:
        return BatchEncoder(
            damage,
            lambda batch: libraries.pack([[7] if DAMAGES[damage](text) else expected[text] for text in batch]),
            True,
        )

    for name in ("fastokens", "kitoken"):
        monkeypatch.setitem(fastest.ENCODERS, name, wrong)
    choice = choose_encoder(make_tokenizer(specs["llama3-json"]), ["plain text"])
    assert choice.name == "tokenizers"
    assert f"{damage} gives different ids" in choice.reason


def test_the_users_own_texts_count(specs, monkeypatch):
    tokenizer = make_tokenizer(specs["gpt2"])

    def wrong(tokenizer) -> BatchEncoder:
        return BatchEncoder(
            "w", lambda batch: libraries.pack([[] if "zebra" in t else tokenizer.encode(t) for t in batch]), True
        )

    monkeypatch.setattr(fastest, "adversarial", lambda tokenizer: [])
    monkeypatch.setitem(fastest.ENCODERS, "fastokens", wrong)
    assert choose_encoder(tokenizer, ["horse"]).name == "fastokens"
    assert choose_encoder(tokenizer, ["horse", "a zebra"]).name != "fastokens"


def test_a_library_that_is_missing_or_fails_is_passed_over(specs, proof, monkeypatch):
    tokenizer = make_tokenizer(specs["llama3-json"])
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert choose_encoder(tokenizer, ["a"]).name in ("kitoken", "tokenizers")
    with pytest.raises(ConfigError, match=r"fastokens is not installed, and is .*: pip install fastokens"):
        choose_encoder(tokenizer, ["a"], wanted="fastokens")

    def failing(tokenizer) -> BatchEncoder:
        return BatchEncoder("failing 1", lambda batch: 1 / 0, True)

    monkeypatch.setitem(fastest.ENCODERS, "kitoken", failing)
    choice = choose_encoder(tokenizer, ["a"])
    assert choice.name == "tokenizers"
    assert "fastokens is not installed" in choice.reason
    assert "failing 1 fails on a text of the sample (division by zero)" in choice.reason


def test_names(specs):
    assert encoders() == ("auto", "fastokens", "words", "kitoken", "sentencepiece", "tokenizers", "original")
    tokenizer = make_tokenizer(specs["bert-lower"])
    assert choose_encoder(tokenizer, [], wanted="original").name == "original"
    for name, expected in [
        ("magic", "unknown; one of auto, fastokens"),
        ("fastokens", "made for tokenizer.json only; use --encoder auto"),
        ("sentencepiece", "reads .model files only"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            choose_encoder(tokenizer, [], wanted=name)


def test_the_sample_holds_this_vocabularys_tokens_in_odd_places(specs):
    texts = adversarial(make_tokenizer(specs["llama3-json"]))
    assert {"<|begin_of_text|>", "<|begin_of_text|><|begin_of_text|>", "a<|end_of_text|>b", "<|end_of_text|"} <= set(
        texts
    )
    assert texts == adversarial(make_tokenizer(specs["llama3-json"])), "the same every time"
    assert "" in texts


def test_the_memory_of_words_is_bounded_and_exact(specs, monkeypatch):
    tokenizer = make_tokenizer(specs["bert-lower"])
    monkeypatch.setattr(libraries._Chunks, "MOST", 50)
    encoder = make_encoder(tokenizer, "words")
    for _ in range(2):
        for text in PROSE[:3]:
            assert _encode(encoder, [text]) == [tokenizer.encode(text)]


def test_limits_in_the_file_change_nothing(specs, tmp_path):
    whole = make_tokenizer(specs["llama3-json"])
    limited = make_tokenizer(specs["llama3-json"]).inner
    limited.enable_truncation(3)
    limited.enable_padding(length=50)
    path = tmp_path / "tokenizer.json"
    limited.save(str(path))
    tokenizer = make_tokenizer(type(specs["llama3-json"])("HFTokenizer", str(path)))
    choice = choose_encoder(tokenizer, PROSE[:1])
    assert choice.name == "fastokens"
    assert _encode(choice.encoder, [PROSE[3]]) == [whole.encode(PROSE[3])]


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
        monkeypatch.setattr(proof_cache, "_ORIGINALS", ("numpy",))
    elif change == "program":
        monkeypatch.setattr(proof_cache, "proof", proof_cache)
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


def test_a_missing_library_is_named_with_its_speed(specs, proof, monkeypatch):
    def absent(tokenizer):
        raise ImportError

    monkeypatch.setitem(fastest.ENCODERS, "fastokens", absent)
    monkeypatch.setitem(fastest.ENCODERS, "kitoken", absent)
    reason = choose_encoder(make_tokenizer(specs["llama3-json"]), ["a"]).reason
    assert "fastokens is not installed, and is about 50 times as fast: pip install fastokens" in reason
