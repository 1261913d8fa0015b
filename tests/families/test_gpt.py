"""GPT-2's config.json."""

from __future__ import annotations

import pytest

from megads.errors import CheckpointError
from megads.families.gpt import GPT2_CLASS
from tests.families.read import is_whole, read


@pytest.mark.parametrize(
    ("theirs", "ours"), [("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu")]
)
def test_a_model_is_read(theirs, ours):
    model = read(GPT2_CLASS, activation_function=theirs)
    assert (model.hidden_size, model.ffn_hidden_size, model.seq_length, model.head_dim) == (64, 256, 32, 16)
    assert (model.activation, model.bias, model.tied_embeddings, model.hidden_dropout) == (ours, True, True, 0.1)
    assert is_whole(GPT2_CLASS, model)
    assert GPT2_CLASS.write(model, {})["n_inner"] == 256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation_function": "relu"}, "activation_function='relu' is not supported"),
        ({"n_head": 5}, "n_embd=64 is not a multiple of n_head=5"),
        ({"scale_attn_by_inverse_layer_idx": True}, "attention is scaled by the layer"),
        ({"scale_attn_weights": False}, "scale_attn_weights"),
        ({"add_cross_attention": True}, "reads another one's output"),
    ],
)
def test_what_we_do_not_compute_is_refused(changes, words):
    with pytest.raises(CheckpointError) as problem:
        read(GPT2_CLASS, **changes)
    assert words in str(problem.value)


def test_what_the_class_does_not_have():
    model = read(GPT2_CLASS)
    assert "num_kv_heads=2" in GPT2_CLASS.misfit(model.model_copy(update={"num_kv_heads": 2}))
    assert "head_dim=32" in GPT2_CLASS.misfit(model.model_copy(update={"head_dim": 32}))
