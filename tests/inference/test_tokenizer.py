"""Special tokens and their names, of tokenizers whose library knows of them and of others."""

from __future__ import annotations

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import DataError
from megads.inference.tokenizer import name_of, spec_given, special_tokens
from tests.data.tokenizers import vocabularies


def test_special_tokens_of_a_json_file(tmp_path):
    tokenizer = make_tokenizer(vocabularies.byte_level(tmp_path))
    assert special_tokens(tokenizer) == {0: "<|begin_of_text|>", 1: "<|end_of_text|>"}
    assert tokenizer.encode("ab") == [0, *tokenizer.encode_plain("ab")]


def test_special_tokens_of_sentencepiece_have_names_though_no_text(tmp_path):
    tokenizer = make_tokenizer(TokenizerSpec("Llama2Tokenizer", vocabularies.sentence_piece(tmp_path)))
    assert tokenizer.decode([1]) == ""
    assert special_tokens(tokenizer) == {1: "<s>", 2: "</s>"}
    (word,) = tokenizer.encode_plain("the")[:1]
    assert name_of(tokenizer, word) == tokenizer.decode([word])


def test_a_name_without_a_tokenizer_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"--tokenizer .*: pass a tokenizer.json, a .model of sentencepiece"):
        spec_given(str(tmp_path))
