"""The FLOP formula against a count of the operations that run, and against published numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megads.config.schema import ModelConfig
from megads.dist.grid import Grid
from megads.dist.groups import Groups
from megads.models.build import build_model
from megads.models.flops import train_flops_per_token
from tests.models.shapes import KINDS, make_run


@pytest.mark.parametrize("kind", KINDS)
def test_formula_equals_the_operations_that_run(kind):
    model = KINDS[kind]
    module = build_model(make_run(model), Groups(Grid(), 0))
    tokens = torch.zeros(2, model.seq_length, dtype=torch.int64)
    # The plain kernel, which computes the whole square and whose products the counter knows.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(tokens, tokens).backward()
    assert counter.get_total_flops() == train_flops_per_token(model, model.seq_length) * tokens.numel()


def test_formula_equals_megatrons():
    sizes = {"num_layers": 3, "hidden_size": 96, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16}
    model = ModelConfig(**sizes, ffn_hidden_size=200, vocab_size=1000, vocab_multiple=64)
    layers, h, a, g, k, f, s, padded = 3, 96, 8, 2, 16, 200, 512, 1024
    bracket = (1 + g / a + s / h) * (k * a / h) + (f / h) * 1.5 + padded / (2 * layers * h)
    assert train_flops_per_token(model, s) == pytest.approx(12 * layers * h**2 * bracket, rel=1e-12)


def test_published_utilisation_of_175b():
    """Korthikanti et al. 2022 (arXiv 2205.05198): 175B, 64 A100, batch 64, 13.75 s a step: 51.4 %."""
    model = ModelConfig(
        num_layers=96,
        hidden_size=12288,
        num_heads=96,
        num_kv_heads=96,
        head_dim=128,
        ffn_hidden_size=4 * 12288,
        vocab_size=51200,
        activation="gelu_tanh",
    )
    per_second = train_flops_per_token(model, 2048) * 64 * 2048 / 13.75
    assert per_second / (64 * 312e12) == pytest.approx(0.514, abs=0.001)
