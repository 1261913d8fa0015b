"""What one engine wrote the other continues: scalars and loss scale exactly, losses and weights up to rounding."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.engine.plain import (
    ENGINES,
    HALF,
    STEPS,
    batches,
    make_engine,
    on,
    plain_loop,
    rate,
    saved,
    settings,
    take_over,
    train,
    working,
)
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

GRIDS: dict[str, dict[str, int]] = {"dp2": {"data": 2}, "tp2": {"tensor": 2}, "sp2": {"seq": 2}}
OPTIMIZERS = ["adamw", "sgd", "lion", "adamwschedulefree"]
ALL = {"deepspeed.param_persistence_threshold": "0"}
CLOSE = 1e-6


def _other(engine: str) -> str:
    return ENGINES[1 - ENGINES.index(engine)]


def _continues(grid: dict[str, int], writer: str, before: str, after: str, optimizer: str) -> None:
    """Two engines go on from one state, side by side."""
    import torch

    groups, common = groups_of(**grid), {**ALL, "optim.optimizer": optimizer}
    first = settings(grid, **on(writer, {**common, "parallel.zero_stage": before}))
    second = settings(grid, **on(_other(writer), {**common, "parallel.zero_stage": after}))
    whole, reader = make_engine(first, groups), make_engine(second, groups)
    train(whole, first, groups, 0, HALF)
    train(reader, second, groups, STEPS, STEPS + 1)  # what it has learned by itself must not survive
    take_over(reader, whole)
    assert reader.state.scalars() == whole.state.scalars()
    theirs = saved(whole)
    for name, kinds in saved(reader).items():
        for kind, tensor in kinds.items():
            assert torch.equal(tensor, theirs[name][kind]), f"{name} {kind}"
    used = working(whole)
    assert all(torch.equal(weight, used[name]) for name, weight in working(reader).items())
    ours, others = (train(each, run, groups, HALF, STEPS) for each, run in ((reader, second), (whole, first)))
    assert [float(r.loss) for r in ours] == pytest.approx([float(r.loss) for r in others], rel=CLOSE)
    assert [r.grad_norm for r in ours] == pytest.approx([r.grad_norm for r in others], rel=1e-5)
    theirs = saved(whole)
    for name, kinds in saved(reader).items():
        off = float((kinds["weight"] - theirs[name]["weight"]).abs().max() / theirs[name]["weight"].abs().max())
        # Lion steps by signs: that of a number near 0 is rounding.
        assert off <= (1e-3 if optimizer == "lion" else 1e-5), (name, off)
    assert reader.state.scalars() == whole.state.scalars()


@pytest.mark.dist
@parametrize_pairs(
    grid=GRIDS, writer=ENGINES, before=["0", "1", "2", "3"], after=["0", "1", "2", "3"], optimizer=OPTIMIZERS
)
def test_either_engine_continues_what_the_other_wrote(grid, writer, before, after, optimizer):
    run_ranks(math.prod(grid.values()), _continues, grid, writer, before, after, optimizer)


HALVES: dict[str, dict[str, str]] = {
    "bf16": {"train.dtype": "bf16"},
    "fp16": {"train.dtype": "fp16", "optim.initial_loss_scale_power": "10", "optim.loss_scale_window": "2"},
}


class _Bad:
    """Makes the gradients of a step infinite on the last rank, when told to."""

    def __init__(self, engine: Any, groups: Any):
        self.is_on = False
        if groups.rank == groups.grid.world_size - 1:
            next(engine.module.parameters()).register_hook(lambda grad: grad * math.inf if self.is_on else grad)


def _counts_alike(writer: str, stage: str, dtype: str) -> None:
    """A bad step before the change of engines and one behind it: skipped, and scaled, alike."""
    grid = {"data": 2}
    groups, common = groups_of(**grid), {**ALL, **HALVES[dtype], "parallel.zero_stage": stage}
    first, second = settings(grid, **on(writer, common)), settings(grid, **on(_other(writer), common))
    whole, reader = make_engine(first, groups), make_engine(second, groups)
    bad = [_Bad(each, groups) for each in (whole, reader)]
    kinds = "gbggbbgggg"
    for step, kind in enumerate(kinds):
        if step == 4:
            take_over(reader, whole)
        for each in bad:
            each.is_on = kind == "b"
        said, losses = [], []
        for engine, run in ((whole, first), (reader, second))[: 1 if step < 4 else 2]:
            result = engine.train_step(batches(run, step, groups.data_rank), rate(step % 5))
            assert result.skipped == (kind == "b")
            said.append((result.loss_scale, engine.state.scalars()))
            losses.append(float(result.loss))
        assert all(each == said[0] for each in said), (step, said)
        assert losses[0] == pytest.approx(losses[-1], abs=2e-3)
    assert said[0][1]["skipped_steps"] == kinds.count("b")


@pytest.mark.dist
@parametrize_pairs(writer=ENGINES, stage=["1", "2", "3"], dtype=[*HALVES])
def test_skipped_steps_and_loss_scale_are_counted_alike(writer, stage, dtype):
    run_ranks(2, _counts_alike, writer, stage, dtype)


def _trains_like_the_plain_loop_across(stages: list[str]) -> None:
    """From engine to engine at every step: the losses of one plain loop."""
    grid = {"tensor": 2, "data": 2}
    groups = groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}))
    before = None
    for step, stage in enumerate(stages):
        run = settings(grid, **on(ENGINES[step % 2], {**ALL, "parallel.zero_stage": stage}))
        engine = make_engine(run, groups)
        if before is not None:
            take_over(engine, before)
        (result,) = train(engine, run, groups, step, step + 1)
        assert float(result.loss) == pytest.approx(losses[step], rel=1e-5)
        assert result.grad_norm == pytest.approx(norms[step], rel=1e-4)
        before = engine


@pytest.mark.dist
def test_a_run_may_change_its_engine_at_every_step():
    run_ranks(4, _trains_like_the_plain_loop_across, ["1", "3", "0", "2"])
