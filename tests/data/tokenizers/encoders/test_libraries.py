"""Libraries behind one interface."""

from __future__ import annotations

import pytest

from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.encoders import fastest, libraries
from megads.data.tokenizers.encoders.fastest import make_encoder
from megads.data.tokenizers.encoders.libraries import UnfitError
from megads.errors import DataError
from tests.data.tokenizers.encoders.conftest import CHOSEN, encode
from tests.data.tokenizers.vocabularies import PROSE


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


def test_the_memory_of_words_is_bounded_and_exact(specs, monkeypatch):
    tokenizer = make_tokenizer(specs["bert-lower"])
    monkeypatch.setattr(libraries._Chunks, "MOST", 50)
    encoder = make_encoder(tokenizer, "words")
    for _ in range(2):
        for text in PROSE[:3]:
            assert encode(encoder, [text]) == [tokenizer.encode(text)]
