"""Every ZeRO stage on every grid trains as a plain loop on one rank does, resumes bitwise, and skips what it must."""

from __future__ import annotations

import math

import pytest

from tests.engine.plain import (
    NATIVE,
    batches,
    eval_loss,
    goes_on_bitwise,
    make_engine,
    rate,
    settings,
    train,
    trains_like_one_rank,
    working,
)
from tests.ranks import groups_of, run_ranks

GRIDS = {
    "one": {},
    "dp2": {"data": 2},
    "tp2": {"tensor": 2},
    "sp2": {"seq": 2},
    "tp2dp2": {"tensor": 2, "data": 2},
    "sp2dp2": {"seq": 2, "data": 2},
}
SCATTER = {"parallel.scatter_norms": "1"}
GPT = {"model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
TIED = {"model.tied_embeddings": "true"}
FULL = {"recompute.granularity": "full"}
CASES = [
    *((grid, str(stage), {}) for grid in ("dp2", "tp2dp2") for stage in range(4)),
    ("one", "0", {}),
    ("one", "3", {}),
    ("tp2", "1", SCATTER),
    ("sp2", "1", {}),
    ("sp2dp2", "2", GPT),
    ("tp2dp2", "1", {**SCATTER, **GPT}),
    ("tp2dp2", "2", SCATTER),
    ("tp2dp2", "3", {**SCATTER, **TIED}),
    ("dp2", "3", {**FULL, **TIED}),
    ("dp2", "3", {**FULL, "recompute.num_layers": "2", "deepspeed.prefetch_bucket_size": "0"}),
    ("dp2", "3", {**FULL, "recompute.method": "block"}),
    ("dp2", "3", {"recompute.granularity": "selective"}),
    ("dp2", "1", {"deepspeed.offload_optimizer": "cpu"}),
    ("dp2", "3", {"deepspeed.offload_optimizer": "cpu"}),
]


def case_name(case: tuple[str, str, dict[str, str]]) -> str:
    grid, stage, more = case
    return "-".join([grid, f"zero{stage}", *more.values()])


def ranks(grid: str) -> int:
    return math.prod(GRIDS[grid].values())


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_trains_like_one_rank(case):
    grid, stage, more = case
    run_ranks(ranks(grid), trains_like_one_rank, GRIDS[grid], {**NATIVE, "parallel.zero_stage": stage, **more})


@pytest.mark.dist
@pytest.mark.parametrize(
    ("stage", "dtype"), [("1", "bf16"), ("3", "bf16"), ("2", "fp16"), ("0", "fp32"), ("3", "fp32")]
)
def test_goes_on_bitwise(stage, dtype):
    run_ranks(2, goes_on_bitwise, GRIDS["dp2"], {**NATIVE, "parallel.zero_stage": stage, "train.dtype": dtype})


def _engine(grid, **changes):
    run, groups = settings(GRIDS[grid], **NATIVE, **changes), groups_of(**GRIDS[grid])
    return make_engine(run, groups), run, groups


def _half_precision_is_near_float32(grid: str, dtype: str, stage: str) -> None:
    import torch

    results = []
    for kind in ("fp32", dtype):
        engine, run, groups = _engine(grid, **{"train.dtype": kind, "parallel.zero_stage": stage})
        results.append(train(engine, run, groups))
    assert [float(r.loss) for r in results[1]] == pytest.approx([float(r.loss) for r in results[0]], rel=0.01)
    assert [r.grad_norm for r in results[1]] == pytest.approx([r.grad_norm for r in results[0]], rel=0.05)
    used = working(engine)
    for state in engine.state.by_parameter():
        assert torch.equal(used[state.name], state.tensors["weight"].to(used[state.name].dtype))
    assert results[1][0].loss_scale == (2.0**run.optim.initial_loss_scale_power if dtype == "fp16" else 1.0)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "dtype", "stage"), [("dp2", "bf16", "1"), ("tp2", "bf16", "1"), ("dp2", "bf16", "3"), ("dp2", "fp16", "2")]
)
def test_half_precision_is_near_float32(grid, dtype, stage):
    run_ranks(ranks(grid), _half_precision_is_near_float32, grid, dtype, stage)


def _rejected_and_infinite_steps_change_nothing(stage: str, dtype: str) -> None:
    import torch

    engine, run, groups = _engine("dp2", **{"parallel.zero_stage": stage, "train.dtype": dtype})
    train(engine, run, groups, 0, 2)
    before, scalars = _everything(engine), engine.state.scalars()
    seen: list[float] = []
    result = engine.train_step(batches(run, 2, groups.data_rank), rate(2), accepts=lambda loss: bool(seen.append(loss)))
    assert result.rejected
    assert result.skipped
    assert seen == [float(result.loss)]
    assert math.isfinite(result.grad_norm)
    assert engine.state.scalars() == {**scalars, "skipped_steps": 1.0}
    _same(before, _everything(engine))

    weight = next(each for name, each in engine.module.named_parameters() if name.endswith("norm.weight"))
    handle = weight.register_hook(lambda grad: torch.full_like(grad, math.inf if groups.data_rank else 1.0))
    result = engine.train_step(batches(run, 2, groups.data_rank), rate(2))
    handle.remove()
    assert result.skipped
    assert not result.rejected
    assert not math.isfinite(result.grad_norm)
    _same(before, _everything(engine))
    if dtype == "fp16":
        assert engine.scaler.cur_hysteresis == run.optim.loss_scale_hysteresis - 1
    result = engine.train_step(batches(run, 2, groups.data_rank), rate(2), accepts=lambda loss: True)
    assert not result.skipped
    assert engine.skipped_steps == 2


def _everything(engine):
    found = {f"{s.name} {kind}": t.clone() for s in engine.state.by_parameter() for kind, t in s.tensors.items()}
    return {**found, **working(engine)}


def _same(before, after) -> None:
    import torch

    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


@pytest.mark.dist
@pytest.mark.parametrize(("stage", "dtype"), [("0", "fp32"), ("1", "bf16"), ("2", "fp16"), ("3", "fp32")])
def test_rejected_and_infinite_steps_change_nothing(stage, dtype):
    run_ranks(2, _rejected_and_infinite_steps_change_nothing, stage, dtype)


def _evaluates_as_it_trains(stage: str) -> None:
    engine, run, groups = _engine("tp2dp2", **{"parallel.zero_stage": stage})
    parts = batches(run, 0, groups.data_rank)
    found = float(eval_loss(engine, parts))
    assert found == pytest.approx(float(engine.train_step(parts, rate(0)).loss), rel=1e-5)
    assert float(eval_loss(engine, parts)) < found


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["1", "3"])
def test_evaluates_as_it_trains(stage):
    run_ranks(4, _evaluates_as_it_trains, stage)


def _averages_are_evaluated() -> None:
    found = []
    for stage in ("1", "3"):
        changes = {"parallel.zero_stage": stage, "optim.optimizer": "adamwschedulefree"}
        engine, run, groups = _engine("dp2", **changes)
        train(engine, run, groups)
        before = _everything(engine)
        found.append(float(eval_loss(engine, batches(run, 9, groups.data_rank))))
        _same(before, _everything(engine))
    assert found[1] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.dist
def test_averages_are_evaluated():
    run_ranks(2, _averages_are_evaluated)


def _an_error_in_a_pass_leaves_an_engine_that_works(stage: str) -> None:
    import torch

    engine, run, groups = _engine("dp2", **{"parallel.zero_stage": stage})
    other, _, _ = _engine("dp2", **{"parallel.zero_stage": stage})
    weight = dict(engine.module.named_parameters())["embedding.weight"]

    def fail(grad: torch.Tensor) -> torch.Tensor:
        raise ValueError("planted")

    handle = weight.register_hook(fail)
    with pytest.raises(ValueError, match="planted"):
        engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    handle.remove()
    for step in range(2):
        found, expected = (
            each.train_step(batches(run, step, groups.data_rank), rate(step)) for each in (engine, other)
        )
        assert found == expected
    _same(_everything(other), _everything(engine))


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_an_error_in_a_pass_leaves_an_engine_that_works(stage):
    run_ranks(2, _an_error_in_a_pass_leaves_an_engine_that_works, stage)


def _holds(stage: str, dtype: str, weights: int, gradients: int, optimizer: int) -> None:
    """Check bytes per parameter, where 2 means all and 1 the half that one of two ranks has."""
    engine, run, groups = _engine("dp2", **{"parallel.zero_stage": stage, "train.dtype": dtype})
    found = []
    stop = engine.before_updates(lambda *_: found.append(engine.memory_usage()))
    engine.train_step(batches(run, 0, groups.data_rank), 1e-3)
    stop()
    count = sum(unit.numel for unit in engine.units)
    assert found[0].weights == weights * count // 2
    assert found[0].gradients == gradients * count // 2
    runs = sum(len(unit.runs) for unit in engine.units)
    assert abs(engine.memory_usage().optimizer - optimizer * count // 2) <= 4 * runs + 8 * 64 * runs
    assert found[0].on_host == 0


@pytest.mark.dist
@pytest.mark.parametrize(
    ("stage", "dtype", "weights", "gradients", "optimizer"),
    [
        ("0", "fp32", 8, 8, 16),
        ("1", "fp32", 8, 8, 8),
        ("2", "fp32", 8, 4, 8),
        ("3", "fp32", 4, 4, 8),
        ("1", "bf16", 4, 8, 12),
        ("3", "bf16", 2, 4, 12),
    ],
)
def test_bytes_by_kind(stage, dtype, weights, gradients, optimizer):
    run_ranks(2, _holds, stage, dtype, weights, gradients, optimizer)
