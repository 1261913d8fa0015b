"""Names of both programs, in both directions."""

from __future__ import annotations

import pytest

from megads.checkpoint.convert.megatron.names import TIED_COPY, ours_of, theirs_of
from megads.errors import CheckpointError
from megads.families.megatron import LAYER


@pytest.mark.parametrize("style", ["legacy", "core", "core-te"])
def test_what_is_written_is_read_as_the_same(style):
    for module in LAYER:
        for kind in ("weight", "bias"):
            assert ours_of(theirs_of(f"{module}.{kind}", style, 3)) == (f"{module}.{kind}", 3)
    for name in ("embedding.weight", "positions.weight", "final_norm.weight", "final_norm.bias", "head.weight"):
        assert ours_of(theirs_of(name, style, None)) == (name, None)


NAMES = {
    "language_model.transformer.layers.11.attention.query_key_value.bias": ("attention.qkv.bias", 11),
    "language_model.encoder.layers.0.post_attention_norm.weight": ("post_norm.weight", 0),
    "language_model.encoder.layers.0.layernorm_mlp.fc2_bias": ("mlp.down.bias", 0),
    "decoder.layers.2.mlp.linear_fc1.layer_norm_weight": ("post_norm.weight", 2),
    "language_model.encoder.final_norm.weight": ("final_norm.weight", None),
    "word_embeddings_for_head.weight": (TIED_COPY, None),
    "decoder.layers.2.mlp.linear_fc1._extra_state": None,
}


@pytest.mark.parametrize(("theirs", "ours"), NAMES.items(), ids=NAMES)
def test_names_of_old_versions_and_of_transformer_engine(theirs, ours):
    assert ours_of(theirs) == ours


FOREIGN = {
    "language_model.decoder.layers.0.input_layernorm.weight": "of a T5 model",
    "classification_head.weight": "of a model that was finetuned for a task",
    "decoder.layers.0.mlp.experts.linear_fc1.weight": "of a mixture of experts",
    "decoder.layers.0.self_attention.q_layernorm.weight": "a norm of queries and keys",
    "decoder.layers.0.something.weight": "a parameter that no GPT or Llama has",
}


@pytest.mark.parametrize(("name", "what"), FOREIGN.items(), ids=FOREIGN)
def test_parameters_of_other_models_are_named(name, what):
    with pytest.raises(CheckpointError, match=what):
        ours_of(name)
