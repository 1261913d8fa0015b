"""Names of both programs, in both directions."""

from __future__ import annotations

import pytest

from megads.checkpoint.convert.megatron.names import TIED_COPY, Place, kind_of, ours_of, theirs_of
from megads.errors import CheckpointError
from megads.families.megatron import DECODER_LAYER, HEADS, LAYER


@pytest.mark.parametrize("style", ["legacy", "core", "core-te"])
@pytest.mark.parametrize("kind", ["decoder", "bert", "t5"])
def test_what_is_written_is_read_as_the_same(kind, style):
    for stack, table in enumerate([LAYER, DECODER_LAYER][: 1 + (kind == "t5")]):
        written = {}
        known = [module for module, names in table.items() if names.legacy or style != "legacy"]
        for module in known:
            for end in ("weight", "bias"):
                theirs = theirs_of(f"{module}.{end}", style, 3, kind=kind, stack=stack)
                assert ours_of(theirs, kind) == Place(f"{module}.{end}", 3, stack)
                written[theirs] = module
        assert len(written) == 2 * len(known)
    outside = ["embedding.weight", "positions.weight", "head.weight"]
    outside += [f"{each}.bias" for each in HEADS.get(kind, {})]
    for name in outside:
        assert ours_of(theirs_of(name, style, None, kind=kind), kind) == Place(name)
    for end in ("weight", "bias"):
        last = theirs_of(f"final_norm.{end}", style, None, kind=kind, stack=int(kind == "t5"))
        assert ours_of(last, kind) == Place(f"final_norm.{end}", None, int(kind == "t5"))
        if kind == "t5":
            assert ours_of(theirs_of(f"encoder_norm.{end}", style, 3, kind=kind), kind) == Place(f"encoder_norm.{end}")


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
    assert ours_of(theirs) == (None if ours is None else Place(*ours))


OF_HEADS = {
    ("bert", "encoder.layers.1.mlp.linear_fc1.layer_norm_bias"): Place("post_norm.bias", 1),
    ("bert", "lm_head.layer_norm.weight"): Place("lm_head.norm.weight"),
    ("bert", "lm_head.layernorm.weight"): Place("lm_head.norm.weight"),
    ("bert", "output_layer.bias"): Place("lm_head.bias"),
    ("bert", "output_layer.weight"): Place("head.weight"),
    ("t5", "encoder.layers.0.pre_mlp_layernorm.bias"): Place("post_norm.bias", 0, 0),
    ("t5", "decoder.layers.0.pre_mlp_layernorm.bias"): Place("post_norm.bias", 0, 1),
    ("t5", "language_model.decoder.layers.0.post_attention_norm.bias"): Place("cross_norm.bias", 0, 1),
    ("t5", "language_model.encoder.layers.0.post_attention_norm.bias"): Place("post_norm.bias", 0, 0),
    ("t5", "output_layer.bias"): Place("output_bias.bias"),
    ("t5", "output_layer.weight"): Place("head.weight"),
    ("t5", "lm_head.output_layer.weight"): Place("head.weight"),
}


@pytest.mark.parametrize(("kind", "theirs"), OF_HEADS)
def test_names_of_encoders(kind, theirs):
    assert ours_of(theirs, kind) == OF_HEADS[kind, theirs]


def test_what_the_names_are_of():
    assert kind_of(["decoder.layers.0.mlp.linear_fc1.weight"]) == "decoder"
    assert kind_of(["language_model.encoder.layers.0.mlp.dense_h_to_4h.weight"]) == "decoder"
    assert kind_of(["lm_head.dense.weight", "language_model.encoder.layers.0.mlp.dense_h_to_4h.weight"]) == "bert"
    assert kind_of(["encoder.layers.0.mlp.linear_fc1.weight"]) == "bert"
    assert kind_of(["encoder.layers.0.mlp.a", "decoder.layers.0.cross_attention.linear_q.weight"]) == "t5"
    assert kind_of(["language_model.decoder.layers.0.input_layernorm.weight"]) == "t5"


FOREIGN = {
    "language_model.decoder.layers.0.input_layernorm.weight": "of a T5 model",
    "classification_head.weight": "of a model that was finetuned for a task",
    "decoder.layers.0.mlp.experts.linear_fc1.weight": "of a mixture of experts",
    "decoder.layers.0.self_attention.q_norm.weight": "a norm of queries and keys",
    "decoder.layers.0.something.weight": "a parameter that no GPT or Llama has",
}


@pytest.mark.parametrize(("name", "what"), FOREIGN.items(), ids=FOREIGN)
def test_parameters_of_other_models_are_named(name, what):
    with pytest.raises(CheckpointError, match=what):
        ours_of(name)
