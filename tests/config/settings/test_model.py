"""Settings of the model's shape."""

from __future__ import annotations

import pytest

from megads.config.settings.model import ModelConfig
from megads.errors import ConfigError
from megads.families.table import FAMILY_DEFAULTS
from tests.config.settings.given import given

NULL = {"--tokenizer-type": "NullTokenizer"}


def test_a_null_tokenizers_end_of_document_is_a_token():
    assert given(("model.vocab_size",), {**NULL, "--vocab-size": "999"}) == (1000,)
    assert given(("model.vocab_size",), {"--pad-vocab-size-to": "1000"}) == (1000,)
    with pytest.raises(ConfigError, match="--vocab-size: '1e3' is not an int"):
        given((), {**NULL, "--vocab-size": "1e3"})


def test_group_query_attention_alone_is_one_group():
    group = {"--group-query-attention": ""}
    assert given(("model.num_kv_heads",), group) == (1,)
    assert given(("model.num_kv_heads",), {**group, "--num-query-groups": "2"}) == (2,)


@pytest.mark.parametrize(("word", "kind"), [("rope", "rope"), ("rotary", "rope"), ("learned_absolute", "learned")])
def test_positions_have_the_words_of_other_toolkits(word, kind):
    assert given(("model.position_embedding",), {"--position-embedding-type": word}) == (kind,)


def test_a_family_is_a_bundle_of_defaults_of_this_section_and_its_tokenizer():
    fields = {f"model.{name}" for name in ModelConfig.model_fields} | {"data.tokenizer_type", "data.vocab_extra_ids"}
    assert all(set(defaults) <= fields for defaults in FAMILY_DEFAULTS.values())
    assert given(("model.family", "model.bias"), NO_LLAMA="1") == ("gpt", True)


def test_sizes_have_their_limits():
    with pytest.raises(ConfigError, match="env NLAYERS: 100001 must be at most 100000"):
        given((), NLAYERS="100001")
    with pytest.raises(ConfigError, match=r"env HIDDEN_DROPOUT: 1\.0 must be less than 1"):
        given((), HIDDEN_DROPOUT="1")
