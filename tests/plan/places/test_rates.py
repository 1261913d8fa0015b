"""Factors of the model's rates."""

from __future__ import annotations

from megads.plan.places.rates import MODEL, Rates


def test_the_models_own_rates_change_nothing_and_are_no_anchor():
    assert (MODEL.matmul, MODEL.memory, MODEL.links) == (1.0, 1.0, 1.0)
    assert not MODEL.is_anchored
    assert Rates(1.1, source="anchored on runs/x: matmul 0.58 -> 0.64").is_anchored
