"""A step that is not accepted changes nothing; whoever decides knows the step's loss on every rank."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.engine.plain import ENGINES, batches, make_engine, on, rate, saved, settings, train, working_weights
from tests.pairs import SEED
from tests.ranks import groups_of, run_ranks

HALF = {"train.dtype": "fp16", "optim.initial_loss_scale_power": "8", "optim.loss_scale_window": "2"}
CASES: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "alone-zero0": ({}, {"parallel.zero_stage": "0"}),
    "alone-bf16": ({}, {"train.dtype": "bf16"}),
    "dp2-zero1-fp32": ({"data": 2}, {"parallel.zero_stage": "1"}),
    "dp2-zero1-bf16": ({"data": 2}, {"train.dtype": "bf16"}),
    "dp2-zero1-fp16": ({"data": 2}, HALF),
    "dp2-zero2-bf16": ({"data": 2}, {"train.dtype": "bf16", "parallel.zero_stage": "2"}),
    "dp2-zero3-fp32": ({"data": 2}, {"parallel.zero_stage": "3", "deepspeed.param_persistence_threshold": "0"}),
    "dp2-zero3-fp16": ({"data": 2}, {**HALF, "parallel.zero_stage": "3"}),
    "tp2-zero0": ({"tensor": 2}, {"parallel.zero_stage": "0"}),
    "pp2-zero0": ({"pipe": 2}, {"parallel.zero_stage": "0", "model.tied_embeddings": "true"}),
    "pp2-zero1-fp16": ({"pipe": 2}, HALF),
    "pp2-tp2-bf16": ({"pipe": 2, "tensor": 2}, {"train.dtype": "bf16"}),
    "offload": ({"data": 2}, {"parallel.zero_stage": "1", "deepspeed.offload_optimizer": "cpu"}),
}

QUICK = ("alone-zero0", "alone-bf16", "dp2-zero1-fp16", "dp2-zero3-fp32", "pp2-zero0", "pp2-tp2-bf16")


def _changes_nothing(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    run = settings(grid, **changes)
    groups = groups_of(**grid) if grid else _alone()
    engine, other = make_engine(run, groups), make_engine(run, groups)
    for each in (engine, other):
        train(each, run, groups, 0, 2)
    before, weights, scalars = saved(engine), working_weights(engine), engine.state.scalars()
    asked: list[float] = []

    def refuse(loss: float) -> bool:
        asked.append(loss)
        return False

    for step in (7, 8):
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step), accepts=refuse)
        assert (result.rejected, result.skipped) == (True, True)
        assert asked[-1] == float(result.loss)
    assert len(asked) == 2
    _same_everywhere(asked, groups)
    after = saved(engine)
    for name, kinds in before.items():
        for kind, tensor in kinds.items():
            assert torch.equal(after[name][kind], tensor), f"{name} {kind}"
    for ours, theirs in zip(working_weights(engine), weights, strict=True):
        assert torch.equal(ours, theirs)
    assert engine.state.scalars() == {**scalars, "skipped_steps": scalars["skipped_steps"] + 2}

    # What comes next is as if the steps had not been: also where gradients are kept from step to step.
    accepted = [engine.train_step(batches(run, s, groups.data_rank), rate(s), accepts=lambda _: True) for s in (2, 3)]
    expected = train(other, run, groups, 2, 4)
    assert [_numbers(each) for each in accepted] == [_numbers(each) for each in expected]
    ours, theirs = saved(engine), saved(other)
    assert all(torch.equal(ours[name][kind], t) for name, kinds in theirs.items() for kind, t in kinds.items())
    # The norm that is reported is that of the gradient which was skipped.
    refused, done = (
        each.train_step(batches(run, 4, groups.data_rank), rate(4), accepts=lambda _, answer=answer: answer)
        for each, answer in ((engine, False), (other, True))
    )
    assert (refused.rejected, refused.skipped, done.skipped) == (True, True, False)
    assert refused.grad_norm == pytest.approx(done.grad_norm, rel=1e-6)


def _numbers(result: Any) -> tuple[Any, ...]:
    return float(result.loss), result.grad_norm, result.skipped, result.loss_scale, result.rejected


def _alone() -> Any:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups

    return Groups(Grid(), 0)


def _same_everywhere(numbers: list[float], groups: Any) -> None:
    import torch.distributed as dist

    if groups.grid.world_size > 1:
        everyone: list[Any] = [None] * groups.grid.world_size
        dist.all_gather_object(everyone, numbers)
        assert everyone == [numbers] * groups.grid.world_size


@pytest.mark.dist
@pytest.mark.parametrize(("case", "engine"), [(case, engine) for case in QUICK for engine in ENGINES])
def test_a_step_that_is_not_accepted_changes_nothing(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _changes_nothing, grid, on(engine, changes), timeout_s=180)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("case", [each for each in CASES if each not in QUICK])
def test_no_step_that_is_not_accepted_changes_anything(case):
    grid, changes = CASES[case]
    engine = random.Random(f"{SEED}/{case}").choice(ENGINES)
    run_ranks(math.prod(grid.values()), _changes_nothing, grid, on(engine, changes), timeout_s=180)


def _sends_no_more(grid: dict[str, int], engine: str, more: dict[Any, Any]) -> None:
    from tests.parity.recorder import Traffic

    run, groups = settings(grid, **on(engine, {"parallel.zero_stage": "1"})), groups_of(**grid)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, 1)
    rows = []
    for accepts in (None, lambda loss: True):
        with Traffic(groups) as traffic:
            engine.train_step(batches(run, 1, groups.data_rank), rate(1), accepts=accepts)
        rows.append(traffic.rows)
    silent, asked = rows
    assert asked == {**silent, **more}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "engine"),
    [
        pytest.param({axis: 2}, engine, id=f"{axis}-{engine}")
        for axis in ("data", "pipe", "tensor")
        for engine in ENGINES
    ],
)
def test_asking_sends_one_number_to_tensor_ranks_and_nothing_else(grid, engine):
    """The native engine has the number of the first tensor rank anyway."""
    more = {("tensor", "broadcast"): (1, 1)} if "tensor" in grid and engine == "deepspeed" else {}
    run_ranks(2, _sends_no_more, grid, engine, more, timeout_s=180)
