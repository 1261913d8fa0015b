"""The types of .model files give the ids of the sentencepiece library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer, vocab_size
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import ODD, PROSE, SPECIAL, noise

TEXTS = (*ODD, *PROSE[:6], *noise(1, 150))


def test_sentencepiece_types_are_the_library(specs):
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=specs["llama2"].model)
    plain, llama = make_tokenizer(specs["gpt-sp"]), make_tokenizer(specs["llama2"])
    for text in (*TEXTS, *SPECIAL):
        ids = library.encode(text)
        assert plain.encode(text) == ids
        assert llama.encode(text) == [library.bos_id(), *ids], "Llama 2 begins every text"
        assert plain.encode_plain(text) == llama.encode_plain(text) == ids
        assert plain.decode(ids) == library.decode(ids)
    assert plain.eod == llama.eod == library.eos_id() == plain.specials.eos
    assert plain.vocab_size == llama.vocab_size == vocab_size(specs["llama2"]) == len(library)


def test_llama_is_transformers(specs):
    import sentencepiece
    from transformers import LlamaTokenizer

    library = sentencepiece.SentencePieceProcessor(model_file=specs["llama2"].model)
    vocab = {library.id_to_piece(number): number for number in range(len(library))}
    merges = json.loads(Path(specs["metaspace-json"].model).read_text())["model"]["merges"]
    other = LlamaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges], legacy=True)
    llama = make_tokenizer(specs["llama2"])
    for text in (*PROSE[:4], *(each for each in ODD if each and each[0] != " ")):
        assert llama.encode(text) == [library.bos_id(), *other.encode(text, add_special_tokens=False)], text


def _with_added(library, found: dict[str, int], text: str) -> list[int]:
    """The special token that comes first is cut out, again and again, as Megatron does."""
    ids = []
    while places := {token: text.index(token) for token in found if token in text}:
        first = min(places, key=places.__getitem__)
        ids += [*library.encode(text[: places[first]]), found[first]]
        text = text[places[first] + len(first) :]
    return ids + library.encode(text)


@pytest.mark.parametrize("name", ["sp", "sp-unigram"])
def test_sentencepiece_adds_tokens_and_finds_them(specs, name):
    tokenizer = make_tokenizer(specs[name])
    library, base = tokenizer.processor, len(tokenizer.processor)
    special = tokenizer.specials
    assert (special.cls, special.sep, tokenizer.eod, special.mask) == (base, base + 1, base + 2, base + 3)
    if name == "sp":
        assert (special.pad, special.bos, special.eos) == (base + 4, 1, 2), "a model without padding gets one"
        assert special.extra == tuple(range(base + 5, base + 17))
    else:
        assert (special.pad, special.bos, special.eos, special.extra) == (3, 1, 2, ())
    assert tokenizer.vocab_size == vocab_size(specs[name]) == base + (17 if name == "sp" else 4)
    for text in (*TEXTS, *SPECIAL):
        assert tokenizer.encode(text) == _with_added(library, dict(tokenizer.found), text), text
    assert tokenizer.decode([base + 2]).strip() == "<EOD>"


def test_broken_models_of_sentencepiece(specs, tmp_path):
    path = tmp_path / "x.model"
    path.write_bytes(b"nonsense")
    for spec, expected in [
        (TokenizerSpec("Llama2Tokenizer", str(path)), "sentencepiece cannot read it"),
        (TokenizerSpec("Llama2Tokenizer", str(tmp_path)), "tokenizer.model: no such file; expected a .model"),
        (TokenizerSpec("GPTSentencePieceTokenizer"), "TOKENIZER_MODEL is not set"),
        (TokenizerSpec("Llama2Tokenizer", specs["llama2"].model, extra_ids=1), "has no tokens <extra_id_N>"),
    ]:
        with pytest.raises((ConfigError, DataError), match=expected):
            make_tokenizer(spec)


def test_an_empty_model_of_sentencepiece(tmp_path):
    (tmp_path / "t.model").write_bytes(b"")
    with pytest.raises(DataError, match=r"t\.model: is empty; expected a \.model file"):
        make_tokenizer(TokenizerSpec("GPTSentencePieceTokenizer", str(tmp_path / "t.model")))
