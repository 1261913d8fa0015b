"""Which matrices get adapters, and their parameters; shapes are worked out by hand."""

from __future__ import annotations

import pytest

from megads.families.decoder import spec_of
from megads.families.lora import Adapter, adapter_of, parts_of, scale_of, unknown_words
from tests.models.shapes import GPT, LLAMA

ADAPTED = LLAMA.model_copy(update={"lora_rank": 2, "lora_alpha": 6.0})


def adapters(model):
    return {each.name: (each.shape, each.dim, each.parts) for each in spec_of(model).layer if each.kind == "adapter"}


def test_adapters_of_llama_have_an_a_for_every_part_that_transformers_keeps_apart():
    width, inner = LLAMA.hidden_size, LLAMA.ffn_hidden_size
    q, kv = LLAMA.num_heads * LLAMA.head_dim, LLAMA.num_kv_heads * LLAMA.head_dim
    assert adapters(ADAPTED) == {
        "attention.qkv.lora_a": ((6, width), None, ()),
        "attention.qkv.lora_b": ((q + 2 * kv, 2), 0, (q, kv, kv)),
        "attention.out.lora_a": ((2, q), 1, (q,)),
        "attention.out.lora_b": ((width, 2), None, ()),
        "mlp.gate_up.lora_a": ((4, width), None, ()),
        "mlp.gate_up.lora_b": ((2 * inner, 2), 0, (inner, inner)),
        "mlp.down.lora_a": ((2, inner), 1, (inner,)),
        "mlp.down.lora_b": ((width, 2), None, ()),
    }
    assert scale_of(ADAPTED) == 3


def test_qkv_of_gpt_share_an_a_as_they_are_one_matrix_there():
    model = GPT.model_copy(update={"lora_rank": 2})
    assert adapter_of(model, "attention.qkv") == Adapter((0, 1, 2), (2,))
    assert adapters(model)["attention.qkv.lora_a"][0] == (2, GPT.hidden_size)
    only = model.model_copy(update={"lora_targets": "q v"})
    assert adapter_of(only, "attention.qkv") == Adapter((0, 2), (2, 2))


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        ("q_proj,v_proj", ("q", "v")),
        ("down out", ("out", "down")),
        ("gate_up", ("gate", "up")),
        ("all-linear", ("q", "k", "v", "out", "gate", "up", "down")),
        ("c_attn q", ("q", "k", "v")),
    ],
)
def test_words_of_targets(targets, found):
    assert parts_of(targets) == found
    assert not unknown_words(targets)


def test_unknown_words_are_named():
    assert unknown_words("q, embed head") == ["embed", "head"]


def test_without_a_rank_there_are_no_adapters_and_with_one_nothing_else_is_trained():
    assert not adapters(LLAMA)
    assert not spec_of(LLAMA).is_adapted
    spec = spec_of(ADAPTED)
    trained = {each.name for each in spec.parameters() if spec.is_trained(each)}
    assert all("lora_" in name for name in trained)
    assert len(trained) == 8 * LLAMA.num_layers
