"""Logits and all gradients equal those of transformers' models with the same weights.

Tiny random models made from a configuration; nothing is downloaded. Tolerances, relative
to each tensor's largest element: 2e-5 in float32, 1e-10 in float64 for GPT-2. Llama's norm
and rotary tables are float32 in transformers whatever the model's type, so its float64
comparison is held to 5e-6.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.models.gpt import GPT
from megads.parallel.documents import find_documents
from tests.models import shapes

VOCAB, LENGTH = 56, 12


def _llama(model: ModelConfig) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=LENGTH,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={**_scaling(model), "rope_theta": model.rope_theta},
        initializer_range=model.init_std,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


def _scaling(model: ModelConfig) -> dict[str, Any]:
    if model.rope_scaling == "none":
        return {"rope_type": "default"}
    return {
        "rope_type": model.rope_scaling,
        "factor": model.rope_scaling_factor,
        "low_freq_factor": model.rope_low_freq_factor,
        "high_freq_factor": model.rope_high_freq_factor,
        "original_max_position_embeddings": model.rope_original_positions,
    }


def _llama_weights(state: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Rename and fuse: weights and gradients alike."""
    named = {
        "embedding.weight": state["model.embed_tokens.weight"],
        "final_norm.weight": state["model.norm.weight"],
        "head.weight": state["lm_head.weight"],
    }
    for index in range(num_layers):
        theirs = f"model.layers.{index}."
        qkv = [state[f"{theirs}self_attn.{part}_proj.weight"] for part in "qkv"]
        gate_up = [state[f"{theirs}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        ours = {
            "input_norm.weight": state[f"{theirs}input_layernorm.weight"],
            "attention.qkv.weight": torch.cat(qkv),
            "attention.out.weight": state[f"{theirs}self_attn.o_proj.weight"],
            "post_norm.weight": state[f"{theirs}post_attention_layernorm.weight"],
            "mlp.gate_up.weight": torch.cat(gate_up),
            "mlp.down.weight": state[f"{theirs}mlp.down_proj.weight"],
        }
        named |= {f"layers.{index}.{name}": tensor for name, tensor in ours.items()}
    return named


def _gpt2(model: ModelConfig) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=model.hidden_size,
        n_inner=model.ffn_hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_heads,
        n_positions=LENGTH,
        layer_norm_epsilon=model.norm_epsilon,
        activation_function={"gelu_tanh": "gelu_new", "gelu": "gelu"}[model.activation],
        initializer_range=model.init_std,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
    )
    return transformers.GPT2LMHeadModel(config)


def _gpt2_weights(state: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Rename and turn: GPT-2 keeps its matrices as [in, out]."""
    names = {
        "ln_1": "input_norm",
        "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.out",
        "ln_2": "post_norm",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    }
    named = {
        "embedding.weight": state["transformer.wte.weight"],
        "positions.weight": state["transformer.wpe.weight"],
        "final_norm.weight": state["transformer.ln_f.weight"],
        "final_norm.bias": state["transformer.ln_f.bias"],
    }
    for index in range(num_layers):
        for theirs, ours in names.items():
            for kind in ("weight", "bias"):
                tensor = state[f"transformer.h.{index}.{theirs}.{kind}"]
                named[f"layers.{index}.{ours}.{kind}"] = tensor.t() if tensor.ndim == 2 else tensor
    return named


def _assert_near(ours: Tensor, theirs: Tensor, tolerance: float, name: str) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error <= tolerance, f"{name}: {error:.2e}"


FAMILIES: dict[str, tuple[Any, Any]] = {"llama": (_llama, _llama_weights), "gpt": (_gpt2, _gpt2_weights)}
# Of its two frequencies one is mixed and one divided.
LLAMA_3 = shapes.LLAMA_GQA.model_copy(
    update={"rope_scaling": "llama3", "rope_scaling_factor": 8.0, "rope_original_positions": 16, "rope_theta": 1e4}
)
GPT_ERF = shapes.GPT.model_copy(update={"activation": "gelu"})
CASES = [
    pytest.param("llama", shapes.LLAMA, torch.float32, 2e-5, id="llama-mha-fp32"),
    pytest.param("llama", shapes.LLAMA_GQA, torch.float32, 2e-5, id="llama-gqa-fp32"),
    pytest.param("llama", shapes.LLAMA_GQA, torch.float64, 5e-6, id="llama-gqa-fp64"),
    pytest.param("gpt", shapes.GPT, torch.float32, 2e-5, id="gpt2-fp32"),
    pytest.param("llama", LLAMA_3, torch.float32, 2e-5, id="llama-scaled-fp32"),
    pytest.param("gpt", shapes.GPT, torch.float64, 1e-10, id="gpt2-fp64"),
    pytest.param("gpt", GPT_ERF, torch.float64, 1e-10, id="gpt2-erf-fp64"),
]


@pytest.mark.parametrize(("family", "model", "dtype", "tolerance"), CASES)
def test_logits_and_gradients_equal_transformers(family, model, dtype, tolerance):
    make, rename = FAMILIES[family]
    model = model.model_copy(update={"vocab_size": VOCAB})
    theirs = make(model).to(dtype).train()
    with torch.no_grad():  # norms and biases that are not 1 and 0, so that each counts
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    ours = GPT(model, Groups(Grid(), 0)).to(dtype)
    ours.load_state_dict(rename(theirs.state_dict(), model.num_layers))

    tokens = torch.randint(0, VOCAB, (3, LENGTH + 1))
    expected = theirs(tokens[:, :-1]).logits
    _assert_near(ours(tokens[:, :-1]), expected, tolerance, "logits")

    expected_loss = nn.functional.cross_entropy(expected.flatten(0, 1), tokens[:, 1:].flatten())
    expected_loss.backward()
    loss = ours(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    _assert_near(loss, expected_loss, tolerance, "loss")
    gradients = rename({name: weight.grad for name, weight in theirs.named_parameters()}, model.num_layers)
    for name, weight in ours.named_parameters():
        _assert_near(weight.grad, gradients[name], tolerance, name)


RESETS = {"both": (True, True), "positions": (True, False), "attention": (False, True)}


def _packed(theirs: nn.Module, tokens: Tensor, end: int, positions: bool, attention: bool) -> Tensor:
    """Return transformers' logits with every position and the whole mask spelled out."""
    size, length = tokens.shape
    segment = ((tokens == end).cumsum(dim=1) - (tokens == end).long())[:, None, :]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    alike = segment.transpose(1, 2) == segment
    mask = (past & alike if attention else past.expand(size, -1, -1)).unsqueeze(1)
    place = (past & alike).sum(dim=2) - 1 if positions else torch.arange(length).expand(size, -1)
    return theirs(tokens, attention_mask=mask, position_ids=place).logits


@pytest.mark.parametrize(("positions", "attention"), RESETS.values(), ids=RESETS)
@pytest.mark.parametrize(("family", "model", "dtype", "tolerance"), [CASES[1], CASES[2], CASES[5]])
def test_packed_documents_equal_transformers_with_an_explicit_mask(
    family, model, dtype, tolerance, positions, attention
):
    make, rename = FAMILIES[family]
    model = model.model_copy(update={"vocab_size": VOCAB})
    theirs = make(model).to(dtype).train()
    ours = GPT(model, Groups(Grid(), 0)).to(dtype)
    ours.load_state_dict(rename(theirs.state_dict(), model.num_layers))
    tokens = torch.randint(1, VOCAB, (3, LENGTH + 1))
    tokens[0, 4] = tokens[1, 0] = tokens[1, 1] = tokens[1, 9] = 0
    documents = find_documents(
        tokens[:, :-1], 0, Groups(Grid(), 0), reset_positions=positions, reset_attention=attention
    )
    expected = _packed(theirs, tokens[:, :-1], 0, positions, attention)
    assert (expected - theirs(tokens[:, :-1]).logits).abs().max() > 1e-3
    _assert_near(ours(tokens[:, :-1], documents=documents), expected, tolerance, "logits")

    expected_loss = nn.functional.cross_entropy(expected.flatten(0, 1), tokens[:, 1:].flatten())
    expected_loss.backward()
    loss = ours(tokens[:, :-1], tokens[:, 1:], documents=documents)
    loss.backward()
    _assert_near(loss, expected_loss, tolerance, "loss")
    gradients = rename({name: weight.grad for name, weight in theirs.named_parameters()}, model.num_layers)
    for name, weight in ours.named_parameters():
        _assert_near(weight.grad, gradients[name], tolerance, name)
