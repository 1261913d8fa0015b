"""Engines use the learning rate and the weight decay that a step is given, and let biases and norms be."""

from __future__ import annotations

import math

import pytest

from tests.engine.plain import batches, make_engine, settings
from tests.ranks import groups_of, run_ranks


def _takes_its_rates(grid: dict[str, int], changes: dict[str, str]) -> None:
    """Two steps without a learning rate's effect but for decay: a weight shrinks by 1 - rate x decay."""
    run, groups = settings(grid, **{"optim.weight_decay": "0.3", **changes}), groups_of(**grid)
    engine = make_engine(run, groups)
    plain = make_engine(run, groups)
    engine.train_step(batches(run, 0, groups.data_rank), 1e-2, weight_decay=0.5)
    plain.train_step(batches(run, 0, groups.data_rank), 1e-2, weight_decay=0.0)
    start = {state.name: state.tensors["weight"].clone() for state in make_engine(run, groups).states()}
    free = {state.name: state.tensors["weight"].clone() for state in plain.states()}
    decaying = 0
    for state in engine.states():
        weight = state.tensors["weight"]
        by = 1e-2 * 0.5 * start[state.name] if weight.dim() > 1 else 0.0
        decaying += weight.dim() > 1
        assert weight.numpy() == pytest.approx((free[state.name] - by).numpy(), abs=1e-6)
    assert decaying


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        pytest.param({}, {"parallel.zero_stage": "0"}, id="zero0"),
        pytest.param({"data": 2}, {"parallel.zero_stage": "2"}, id="dp2-zero2"),
        pytest.param({"pipe": 2}, {"parallel.zero_stage": "1"}, id="pp2"),
    ],
)
def test_a_step_takes_its_own_weight_decay(grid, changes):
    run_ranks(math.prod(grid.values()), _takes_its_rates, grid, changes)
