"""Frequencies and tables equal transformers' own, to the last bit in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from megads.models.rope import Rotary, TokenPositions, frequencies
from tests.models import shapes

LLAMA3 = {"rope_scaling": "llama3", "rope_scaling_factor": 8.0, "rope_original_positions": 8192}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear": {"rope_scaling": "linear", "rope_scaling_factor": 3.0},
    "llama-3.1": LLAMA3,
    "llama-3.2": {**LLAMA3, "rope_scaling_factor": 32.0},
    "other-bands": {**LLAMA3, "rope_low_freq_factor": 1.3, "rope_high_freq_factor": 5.7, "rope_original_positions": 77},
}


def _theirs(model: Any) -> LlamaRotaryEmbedding:
    scaling: dict[str, Any] = {"rope_type": "default"}
    if model.rope_scaling != "none":
        scaling = {"rope_type": model.rope_scaling, "factor": model.rope_scaling_factor}
    if model.rope_scaling == "llama3":
        scaling |= {
            "low_freq_factor": model.rope_low_freq_factor,
            "high_freq_factor": model.rope_high_freq_factor,
            "original_max_position_embeddings": model.rope_original_positions,
        }
    config = LlamaConfig(
        hidden_size=model.num_heads * model.head_dim,
        num_attention_heads=model.num_heads,
        head_dim=model.head_dim,
        max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": model.rope_theta},
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("change", CASES.values(), ids=CASES)
def test_frequencies_and_tables_equal_transformers_bit_by_bit(change, head_dim, theta):
    model = shapes.LLAMA.model_copy(update={**change, "head_dim": head_dim, "rope_theta": theta})
    theirs = _theirs(model)
    assert torch.equal(frequencies(model), theirs.inv_freq)
    first, count = 131072 - 300, 300
    cos, sin = theirs(torch.zeros(1), torch.arange(first, first + count)[None])
    ours = Rotary(frequencies(model)).tables(torch.device("cpu"), torch.float32, count, first)
    half = head_dim // 2
    assert torch.equal(ours[0].squeeze(1), cos[0])
    assert torch.equal(ours[1].squeeze(1), sin[0, :, :half])


def test_the_three_bands_of_llama3_are_kept_mixed_and_divided():
    model = shapes.LLAMA.model_copy(update={**LLAMA3, "head_dim": 128, "rope_theta": 500000.0})
    ratio = frequencies(model.model_copy(update={"rope_scaling": "none"})) / frequencies(model)
    assert ratio[0] == 1
    assert ratio[-1] == 8
    assert ((ratio > 1) & (ratio < 8)).sum() > 3


def test_frequencies_are_on_the_host_whatever_the_default_device():
    with torch.device("meta"):
        assert frequencies(shapes.LLAMA).device.type == "cpu"


def test_single_tokens_without_a_gradient_are_rotated_as_others():
    model = shapes.LLAMA_GQA
    rotary, heads = Rotary(frequencies(model)), torch.randn(3, 1, 16, model.head_dim, dtype=torch.float64)
    for positions in (torch.tensor([[1], [7], [7]]), torch.tensor([[2], [8], [0]])):
        where = TokenPositions(0, 12, positions)
        wanted = rotary(heads, 8, 4, where)
        with torch.no_grad():
            for _ in range(2):  # another layer asks for the same positions
                torch.testing.assert_close(rotary(heads, 8, 4, where), wanted, rtol=0, atol=1e-15)
