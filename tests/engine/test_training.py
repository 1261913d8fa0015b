"""Engines on our grid against a loop anyone can read: plain torch, one rank, float32."""

from __future__ import annotations

import pytest

from tests.engine.plain import (
    ENGINES,
    batches,
    goes_on_bitwise,
    make_engine,
    on,
    plain_loop,
    settings,
    train,
    trains_like_one_rank,
    working_weights,
)
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

GRIDS = [{"tensor": 2}, {"data": 2}, {"tensor": 2, "data": 2}]
IDS = ["tp2", "dp2", "tp2dp2"]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "stage", "engine"),
    [
        *((degree, stage, "deepspeed") for degree in (2, 4) for stage in "01"),
        *((2, stage, "native") for stage in "03"),
        (4, "1", "native"),
    ],
)
def test_tensor_parallelism_alone_trains_like_one_rank(grid, stage, engine):
    """With data parallelism: test_zero_stages.py."""
    run_ranks(grid, trains_like_one_rank, {"tensor": grid}, on(engine, {"parallel.zero_stage": stage}))


def _size(grid):
    return grid.get("tensor", 1) * grid.get("data", 1)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        (GRIDS[1], {"parallel.zero_stage": "0"}),
        (GRIDS[2], {"parallel.zero_stage": "1"}),
        (GRIDS[0], {"train.dtype": "bf16"}),
        (GRIDS[2], {"train.dtype": "fp16", "optim.initial_loss_scale_power": "24"}),
    ],
    ids=["dp2-zero0", "tp2dp2-zero1", "tp2-bf16", "tp2dp2-fp16"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_engine_goes_on_bitwise(grid, changes, engine):
    """In every precision from files: tests/parity/test_resume_bitwise.py."""
    run_ranks(_size(grid), goes_on_bitwise, grid, on(engine, changes))


def _half_is_near(grid: dict[str, int], changes: dict[str, str]) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=5e-3)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=2e-2)


@pytest.mark.dist
@parametrize_pairs(grid=dict(zip(IDS, GRIDS, strict=True)), dtype=["bf16", "fp16"], stage=["0", "1"], engine=ENGINES)
def test_half_precision_is_near_fp32(grid, dtype, stage, engine):
    changes = {"train.dtype": dtype, "parallel.zero_stage": stage, "optim.initial_loss_scale_power": "8"}
    run_ranks(_size(grid), _half_is_near, grid, on(engine, changes))


def _overflow_is_skipped(grid: dict[str, int], kind: str) -> None:
    import torch

    changes = {
        "train.dtype": "fp16",
        "optim.initial_loss_scale_power": "24",
        "optim.loss_scale_hysteresis": "1",
    }
    run, groups = settings(grid, **on(kind, changes)), groups_of(**grid)
    engine = make_engine(run, groups)
    before = working_weights(engine)
    first = engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
    assert first.skipped
    assert first.loss_scale == 2.0**24
    assert engine.loss_scale == 2.0**23
    assert all(torch.equal(now, old) for now, old in zip(working_weights(engine), before, strict=True))
    later = [engine.train_step(batches(run, 0, groups.data_rank), 1e-2) for _ in range(14)]
    assert not later[-1].skipped
    assert float(later[-1].loss) < float(first.loss)


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("grid", [{"tensor": 2}, {"data": 2}], ids=["tp2", "dp2"])
def test_a_step_that_overflows_is_skipped_on_every_rank(grid, engine):
    run_ranks(2, _overflow_is_skipped, grid, engine)


def _a_scale_that_is_set_stays(kind: str) -> None:
    kinds = [
        {"train.dtype": "fp16", "optim.loss_scale": "128"},
        {"train.dtype": "bf16", "parallel.zero_stage": "2"},
        {"parallel.zero_stage": "1"},
    ]
    dynamic = make_engine(settings({}, **on(kind, {"train.dtype": "fp16"})), groups_of())
    before = dynamic.state.scalars()
    assert before["scaler.cur_scale"] == 2.0**16
    for changes in kinds:
        engine = make_engine(settings({}, **on(kind, changes)), groups_of())
        scale = engine.loss_scale
        engine.state.load_scalars(before)
        assert engine.loss_scale == scale == float(changes.get("optim.loss_scale", 1))


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
def test_the_scale_of_another_precision_is_not_taken_over(engine):
    run_ranks(1, _a_scale_that_is_set_stays, engine)


def _bad_gradients_change_nothing(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, 1)
    before = working_weights(engine)
    if groups.rank == 0:
        engine.state.parameters[0].register_hook(lambda grad: grad * float("nan"))
    result = engine.train_step(batches(run, 1, groups.data_rank), 1e-2)
    assert result.skipped
    assert engine.state.scalars()["skipped_steps"] == 1
    assert all(torch.equal(now, old) for now, old in zip(working_weights(engine), before, strict=True))


@pytest.mark.dist
@pytest.mark.parametrize(
    "changes",
    [{"parallel.zero_stage": "0"}, {"parallel.zero_stage": "1"}, {"train.dtype": "bf16"}],
    ids=["zero0", "zero1", "bf16"],
)
@pytest.mark.parametrize("grid", GRIDS[:2], ids=IDS[:2])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_not_finite_on_one_rank_changes_no_weight_on_any(grid, changes, engine):
    run_ranks(2, _bad_gradients_change_nothing, grid, on(engine, changes))


def _clip_zero_means_none(engine: str) -> None:
    run, groups = settings({"tensor": 2}, **on(engine, {"optim.clip_grad": "0"})), groups_of(tensor=2)
    losses, norms, _ = plain_loop(settings({}, **{"optim.clip_grad": "0"}))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
def test_clip_grad_0_switches_clipping_off(engine):
    run_ranks(2, _clip_zero_means_none, engine)
