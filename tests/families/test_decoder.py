"""The parameters of a decoder, from its settings."""

from __future__ import annotations

import pytest

from megads.config.settings.model import ModelConfig
from megads.families.decoder import inner_width, padded_vocab_size, spec_of

SIZES = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 24,
    "ffn_hidden_size": 80,
    "max_positions": 32,
    "vocab_size": 100,
    "vocab_multiple": 64,
}


def layer(**changes) -> dict[str, tuple[int, ...]]:
    return {each.name: each.shape for each in spec_of(ModelConfig(**{**SIZES, **changes})).layer}


@pytest.mark.parametrize(("tokens", "rows"), [(1, 64), (64, 64), (65, 128), (100, 128)])
def test_the_vocabulary_is_padded_to_a_multiple(tokens, rows):
    assert padded_vocab_size(ModelConfig(**{**SIZES, "vocab_size": tokens})) == rows


@pytest.mark.parametrize(("activation", "width"), [("swiglu", 10880), ("gelu", 16384), ("gelu_tanh", 16384)])
def test_a_gate_leaves_two_thirds_of_the_inner_width(activation, width):
    assert inner_width(activation, 4096)[0] == width
    assert inner_width(activation, 8)[0] == (64 if activation == "swiglu" else 32)


def test_a_layer_of_llama():
    assert layer() == {
        "input_norm.weight": (64,),
        "attention.qkv.weight": (4 * 24 + 2 * 2 * 24, 64),
        "attention.out.weight": (64, 4 * 24),
        "post_norm.weight": (64,),
        "mlp.gate_up.weight": (160, 64),
        "mlp.down.weight": (64, 80),
    }


def test_what_the_settings_add_and_move():
    assert layer(qk_norm="head").items() >= {("attention.q_norm.weight", (24,)), ("attention.k_norm.weight", (24,))}
    assert layer(qk_norm="all").items() >= {("attention.q_norm.weight", (96,)), ("attention.k_norm.weight", (48,))}
    assert [name for name in layer(norm_position="after") if "norm" in name] == [
        "attention_norm.weight",
        "mlp_norm.weight",
    ]
    gpt = layer(normalization="layernorm", activation="gelu", bias=True)
    assert gpt["mlp.up.weight"] == (80, 64)
    assert {name for name in gpt if name.endswith("bias")} == {
        f"{each}.bias" for each in ("input_norm", "attention.qkv", "attention.out", "post_norm", "mlp.up", "mlp.down")
    }


def test_the_ends_of_the_model():
    plain = spec_of(ModelConfig(**SIZES))
    assert [each.name for each in (*plain.embedding, *plain.output)] == [
        "embedding.weight",
        "final_norm.weight",
        "head.weight",
    ]
    tied = spec_of(ModelConfig(**SIZES, tied_embeddings=True, position_embedding="learned"))
    assert [(each.name, each.shape) for each in tied.embedding] == [
        ("embedding.weight", (128, 64)),
        ("positions.weight", (32, 64)),
    ]
    assert [each.name for each in tied.output] == ["final_norm.weight"]
    assert tied.is_tied


@pytest.mark.parametrize(("qk_norm", "widths"), [("none", (0, 0)), ("head", (96, 48)), ("all", (96, 48))])
def test_the_channels_that_head_norms_see(qk_norm, widths):
    assert spec_of(ModelConfig(**SIZES, qk_norm=qk_norm)).head_widths == widths
