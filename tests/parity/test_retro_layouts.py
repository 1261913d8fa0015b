"""Retro in layouts drawn so that every two values of their axes meet: the losses, norms and weights of one rank.

Gradients in float64, without an engine: tests/models/test_retro.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import ENGINES
from tests.pairs import pairs
from tests.parity.layouts import Layout, engine_of, one_rank_and_weights, train_on
from tests.parity.masked_layouts import BATCH, RECOMPUTE, ROUNDED, layout_of
from tests.ranks import run_ranks

STEPS = 4
VALUES: dict[str, Any] = {
    "kind": ("retro",),
    "tp": (1, 2),
    "pp": (1,),
    "sp": (1, 2, 4),
    "dp": (1, 2),
    "zero": (0, 1, 2, 3),
    "scatter": (False, True),
    "recompute": tuple(RECOMPUTE),
    "accumulation": (1, 2),
    "engine": ENGINES,
}
SIZES = {"model.num_layers": "6", "train.global_batch": str(BATCH)}


def _is_allowed(**case: Any) -> bool:
    again = case["recompute"] == "full" and case["zero"] == 3 and case["engine"] == "deepspeed"
    return (case["tp"] > 1 or not case["scatter"]) and not again and 1 < case["tp"] * case["sp"] * case["dp"] <= 4


DRAWN = sorted((layout_of(case) for case in pairs(VALUES, allowed=_is_allowed)), key=lambda layout: layout.ranks)


def test_the_layouts_hold_every_two_values():
    assert len({str(layout) for layout in DRAWN}) >= 12
    assert {layout.engine for layout in DRAWN} == set(ENGINES)
    assert {layout.zero for layout in DRAWN if layout.engine == "native"} == {0, 1, 2, 3}


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    more = {**SIZES, "train.micro_batch": str(BATCH)}
    losses, norms, weights = one_rank_and_weights(layout.kind, steps=STEPS, layers="6", more=tuple(more.items()))
    engine, run, groups = engine_of(layout, **SIZES)
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    names = set()
    for state in engine.state.by_parameter():
        wanted = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=ROUNDED)
        names.add(state.name)
    assert names == set(weights)


def _equals_gpt(layout: Layout, losses: list[float]) -> None:
    """Weights of looks and encoder have no gradient, on any rank."""
    engine, run, groups = engine_of(layout, **SIZES)
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gate_that_is_shut_trains_the_decoder_inside_like_one_rank(engine):
    shut = {**SIZES, "model.retro_attention_gate": "0"}
    more = {**shut, "train.micro_batch": str(BATCH)}
    losses = one_rank_and_weights("retro", steps=STEPS, layers="6", more=tuple(more.items()))[0]
    parts = {"train.micro_batch": "1", "model.retro_attention_gate": "0", "deepspeed.param_persistence_threshold": "0"}
    run_ranks(2, _equals_gpt, Layout("retro", dp=2, zero=3, more=parts).on(engine), losses)


@pytest.mark.dist
@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_a_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)
