"""What an encoder has besides a decoder: published sizes, and which settings decide."""

from __future__ import annotations

import pytest

from megads.config.schema import ModelConfig
from megads.families.decoder import spec_of
from megads.families.table import FAMILIES

BASE = ModelConfig(
    **{name.removeprefix("model."): value for name, value in FAMILIES["bert"].defaults.items() if "model." in name},
    family="bert",
    num_layers=12,
    hidden_size=768,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    ffn_hidden_size=3072,
    seq_length=512,
    max_positions=512,
    vocab_size=30522,
    vocab_multiple=1,
)
ORIGINAL = {"norm_position": "behind_sum"}


@pytest.mark.parametrize(
    ("changes", "elements"),
    [
        (ORIGINAL, 110_106_428),  # transformers' BertForPreTraining("bert-base-uncased")
        ({**ORIGINAL, "binary_head": False}, 109_514_298),  # its BertForMaskedLM
        ({}, 110_106_428),  # a norm behind the layers for the one of the embedding
        ({"token_types": 0}, 110_106_428 - 2 * 768),
    ],
)
def test_sizes_are_the_published_ones(changes, elements):
    spec = spec_of(BASE.model_copy(update=changes))
    assert sum(each.size for each in spec.parameters()) == elements


def test_which_norms_a_form_has():
    ours, original = (
        [each.name for each in spec_of(BASE.model_copy(update=changes)).parameters()] for changes in ({}, ORIGINAL)
    )
    assert {"final_norm.weight", "layers.3.input_norm.bias", "layers.3.post_norm.weight"} <= set(ours) - set(original)
    norms = {"embedding_norm.weight", "layers.3.attention_norm.bias", "layers.3.mlp_norm.weight"}
    assert norms <= set(original) - set(ours)


def test_ranks_share_the_vocabulary_and_none_of_the_small_heads():
    spec = spec_of(BASE)
    assert (spec.of("lm_head.bias").dim, spec.of("lm_head.bias").parts) == (0, (30522,))
    assert all(spec.of(f"{name}.weight").dim is None for name in ("lm_head.dense", "pooler.dense", "binary_head"))
    assert spec.of("binary_head.weight").shape == (2, 768)
