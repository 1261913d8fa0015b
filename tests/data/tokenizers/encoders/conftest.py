"""What tests of several modules use."""

from __future__ import annotations

import numpy as np
import pytest

from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.encoders import fastest
from megads.data.tokenizers.encoders.proof import adversarial

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


def encode(encoder, texts) -> list[list[int]]:
    ids, offsets = encoder.encode_batch(texts)
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    assert ids.dtype.itemsize == 4
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if len(texts) else []


@pytest.fixture
def proved(specs, monkeypatch) -> list[tuple[str, list[int]]]:
    """The proof of one tokenizer, made once; the user's sample has nothing odd."""
    if "llama3-json" not in _PROOFS:
        tokenizer = make_tokenizer(specs["llama3-json"])
        _PROOFS["llama3-json"] = fastest._encoded(tokenizer, ["plain text", *adversarial(tokenizer)])
    made = _PROOFS["llama3-json"]
    monkeypatch.setattr(fastest._Trial, "_built_in", made)
    return made


_PROOFS: dict[str, list[tuple[str, list[int]]]] = {}
