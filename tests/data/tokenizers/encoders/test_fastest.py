"""The fastest library that gives exactly the ids of the original is taken."""

from __future__ import annotations

import pickle
import sys

import pytest

from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.encoders import fastest, libraries
from megads.data.tokenizers.encoders.fastest import choose_encoder, make_encoder
from megads.data.tokenizers.encoders.libraries import BatchEncoder
from megads.errors import ConfigError
from tests.data.tokenizers.encoders.conftest import CHOSEN, encode
from tests.data.tokenizers.vocabularies import ODD, PROSE, SPECIAL, llama_json, noise, sentence_piece


@pytest.mark.parametrize("name", CHOSEN)
def test_the_library_taken_gives_the_ids_of_the_original(specs, name):
    tokenizer = make_tokenizer(specs[name])
    numbers = ["3 1 4", "", "99"]
    choice = choose_encoder(tokenizer, numbers if name == "null" else PROSE[:2])
    assert choice.name == CHOSEN[name], choice.reason
    assert "\n" not in choice.reason
    texts = numbers if name == "null" else [*ODD, *SPECIAL, *PROSE[2:6], *noise(2, 300)]
    expected = [tokenizer.encode(text) for text in texts]
    assert encode(choice.encoder, texts) == expected
    assert encode(make_encoder(tokenizer, choice.name), texts) == expected, "as a worker process makes it"
    assert encode(choice.encoder, []) == []
    assert encode(choice.encoder, texts[:1] * 3) == expected[:1] * 3


def test_another_process_makes_the_same(specs):
    for spec in specs.values():
        again = pickle.loads(pickle.dumps(spec))
        assert make_tokenizer(again).fingerprint == make_tokenizer(spec).fingerprint


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


def test_the_users_own_texts_count(specs, monkeypatch):
    tokenizer = make_tokenizer(specs["gpt2"])

    def wrong(tokenizer) -> BatchEncoder:
        return BatchEncoder(
            "w", lambda batch: libraries.pack([[] if "zebra" in t else tokenizer.encode(t) for t in batch])
        )

    monkeypatch.setattr(fastest, "adversarial", lambda tokenizer: [])
    monkeypatch.setitem(fastest.ENCODERS, "fastokens", wrong)
    assert choose_encoder(tokenizer, ["horse"]).name == "fastokens"
    assert choose_encoder(tokenizer, ["horse", "a zebra"]).name != "fastokens"


def test_a_library_that_is_missing_or_fails_is_passed_over(specs, proved, monkeypatch):
    tokenizer = make_tokenizer(specs["llama3-json"])
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert choose_encoder(tokenizer, ["a"]).name in ("kitoken", "tokenizers")
    with pytest.raises(ConfigError, match=r"fastokens is not installed, and is .*: pip install fastokens"):
        choose_encoder(tokenizer, ["a"], wanted="fastokens")

    def failing(tokenizer) -> BatchEncoder:
        return BatchEncoder("failing 1", lambda batch: 1 / 0)

    monkeypatch.setitem(fastest.ENCODERS, "kitoken", failing)
    choice = choose_encoder(tokenizer, ["a"])
    assert choice.name == "tokenizers"
    assert "fastokens is not installed" in choice.reason
    assert "failing 1 fails on a text of the sample (division by zero)" in choice.reason


def test_names(specs):
    assert tuple(fastest.ENCODERS) == ("fastokens", "words", "kitoken", "sentencepiece", "tokenizers", "original")
    tokenizer = make_tokenizer(specs["bert-lower"])
    assert choose_encoder(tokenizer, [], wanted="original").name == "original"
    for name, expected in [
        ("magic", "unknown; one of auto, fastokens"),
        ("fastokens", "made for tokenizer.json only; use --encoder auto"),
        ("sentencepiece", "reads .model files only"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            choose_encoder(tokenizer, [], wanted=name)


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
    assert encode(choice.encoder, [PROSE[3]]) == [whole.encode(PROSE[3])]


def test_a_missing_library_is_named_with_its_speed(specs, proved, monkeypatch):
    def absent(tokenizer):
        raise ImportError

    monkeypatch.setitem(fastest.ENCODERS, "fastokens", absent)
    monkeypatch.setitem(fastest.ENCODERS, "kitoken", absent)
    reason = choose_encoder(make_tokenizer(specs["llama3-json"]), ["a"]).reason
    assert "fastokens is not installed, and is about 50 times as fast: pip install fastokens" in reason
