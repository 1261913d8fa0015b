"""Bytes by kind that the native engine holds, next to the estimate made before the launch."""

from __future__ import annotations

from typing import Any

import pytest

from megads.plan.memory import estimate
from tests.engine.plain import NATIVE, batches, make_engine, settings
from tests.ranks import groups_of, run_ranks

WIDE = {"model.num_layers": "8", "model.hidden_size": "64", **NATIVE}
"""Sizes at which filling up to multiples of 64 elements counts for little."""


def _holds(grid: dict[str, int], changes: dict[str, str]) -> None:
    run, groups = settings(grid, **WIDE, **changes), groups_of(**grid)
    run = run.model_copy(update={"machine": "cpu"})  # whose exchange of gradients has buffers of its own
    engine = make_engine(run, groups)
    at_update: list[Any] = []
    engine.before_updates(lambda *_: at_update.append(engine.memory_usage()))
    for step in range(2):
        engine.train_step(batches(run, step, groups.data_rank), 1e-3)
    found, guess = engine.memory_usage(), estimate(run, groups.grid.world_size)
    assert found.weights == pytest.approx(guess.weights, rel=0.03)
    assert at_update[-1].gradients == pytest.approx(guess.gradients, rel=0.03)
    assert found.optimizer == pytest.approx(guess.optimizer, rel=0.03)
    # Buffers are an upper bound: how many are in use at a time depends on how fast gradients come.
    assert found.buffers <= guess.buffers * 1.03
    kept = guess.weights + guess.gradients + guess.optimizer
    assert found.total == pytest.approx(kept + found.buffers, rel=0.1)
    assert found.on_host == 0


CASES = [
    ({}, {"parallel.zero_stage": "2", "train.dtype": "bf16"}),
    ({"data": 2}, {"parallel.zero_stage": "0", "train.dtype": "bf16"}),
    ({"data": 2}, {"parallel.zero_stage": "1"}),
    ({"data": 2}, {"parallel.zero_stage": "2", "train.dtype": "bf16", "deepspeed.reduce_bucket_size": "60000"}),
    ({"seq": 2}, {"parallel.zero_stage": "3"}),
    ({"data": 2}, {"parallel.zero_stage": "3", "train.dtype": "bf16"}),
    ({"tensor": 2}, {"parallel.zero_stage": "1", "optim.optimizer": "sgd"}),
]


@pytest.mark.dist
@pytest.mark.parametrize(("grid", "changes"), CASES, ids=str)
def test_what_is_held_is_what_was_estimated(grid, changes):
    run_ranks(len(grid) + 1, _holds, grid, changes)
