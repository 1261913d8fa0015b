"""Multiply-adds of an encoder with a decoder, by hand. Against the operations that run: tests/models/test_flops.py."""

from __future__ import annotations

from megads.config.schema import RunConfig
from megads.config.settings.engine import RecomputeConfig
from megads.plan.flops import flops_per_token
from megads.plan.parts.encoder_decoder import LayerProducts, again_products, layer_products, logit_products
from tests.models.shapes import T5S

# E 16, D 8, width 32, heads of 32 together, inner width 48, 56 rows of the vocabulary.
ENCODER = LayerProducts(2 * 32 * 16 * 16, 16 * (4 * 32 * 32 + 2 * 32 * 48))
DECODER = LayerProducts(2 * 32 * 8 * (8 + 16), 8 * (6 * 32 * 32 + 2 * 32 * 48) + 16 * 2 * 32 * 32)


def test_layers_by_hand():
    assert layer_products(T5S["t5"]) == [ENCODER] * 2 + [DECODER] * 3
    assert layer_products(T5S["t5"], causal=True)[-1].core == 32 * 8 * (8 + 2 * 16)
    assert logit_products(T5S["t5"]) == 8 * 32 * 56


def test_a_token_is_one_of_the_encoders():
    run = RunConfig(model=T5S["t5"], recompute=RecomputeConfig(granularity="full", method="block", num_layers=3))
    found = flops_per_token(run)
    total = 2 * ENCODER.whole + 3 * DECODER.whole + 8 * 32 * 56
    assert found.model == 6 * total / 16
    assert found.recomputed == 2 * (2 * ENCODER.whole + DECODER.whole) / 16
    assert again_products(run, layer_products(T5S["t5"]), [range(3, 7)]) == 3 * DECODER.whole
