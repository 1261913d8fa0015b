"""Bytes by kind, counted from an engine's tensors, against what each ZeRO stage must hold."""

from __future__ import annotations

from typing import Any

import pytest

from megads.plan.memory import count_parameters, estimate
from tests.engine.plain import ENGINES, batches, make_engine, on, settings
from tests.ranks import groups_of, run_ranks

SPLIT_ALL = {"deepspeed.param_persistence_threshold": "0"}
STEP = 4  # bytes of AdamW's count of steps, one for each of its tensors


def _at_the_update(engine: Any, run: Any, groups: Any) -> tuple[Any, Any]:
    """Return what is held when the optimizer begins its first update, and after it."""
    found: list[Any] = []
    stop_looking = engine.before_updates(lambda *_: found.append(engine.memory_usage()))
    engine.train_step(batches(run, 0, groups.data_rank), 1e-3)
    stop_looking()
    return found[0], engine.memory_usage()


def _holds(kind: str, zero: str, dtype: str, weights: int, gradients: int, optimizer: int) -> None:
    """Check bytes per parameter, where 2 means all and 1 the half that one of two ranks has."""
    grid = {"data": 2}
    changes = on(kind, {"parallel.zero_stage": zero, "train.dtype": dtype, **SPLIT_ALL})
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    count = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters())
    assert count % 32 == 0  # no padding
    assert count_parameters(run.model) == count
    before, after = _at_the_update(engine, run, groups)
    stepped = engine.optimizer if kind == "native" else engine.engine.basic_optimizer
    steps = STEP * len(stepped.state)
    if kind == "native":
        # Parameters and parts begin at round addresses; moments do without what lies behind the last parameter.
        least = optimizer // 2 * count - optimizer * 64 * len(engine.units)
        count = _with_gaps(engine, count)
        assert least <= after.optimizer <= optimizer // 2 * count + steps
    else:
        assert after.optimizer * 2 == optimizer * count + 2 * steps
    assert after.weights * 2 == weights * count
    assert before.gradients * 2 == gradients * count
    assert after.on_host == 0
    # What was estimated before the launch is what is there.
    guess = estimate(run, 2)
    count = count_parameters(run.model)
    assert [guess.weights * 2, guess.gradients * 2, guess.optimizer * 2] == [
        each * count for each in (weights, gradients, optimizer)
    ]


def _with_gaps(engine: Any, count: int) -> int:
    """Return the elements of the native engine's units."""
    found: int = sum(unit.numel for unit in engine.units)
    assert count <= found <= count + sum(64 * (len(unit.places) + 2) for unit in engine.units)
    return found


# Bytes of a parameter on two ranks together: weight, gradient, optimizer.
HELD = [
    ("0", "fp32", 8, 8, 16),
    ("1", "fp32", 8, 8, 8),
    ("2", "fp32", 8, 4, 8),
    ("3", "fp32", 4, 4, 8),
    ("1", "bf16", 4, 8, 12),
    ("2", "bf16", 4, 4, 12),
    ("3", "bf16", 2, 4, 12),
]


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("zero", "dtype", "weights", "gradients", "optimizer"), HELD)
def test_every_stage_holds_what_it_must(engine, zero, dtype, weights, gradients, optimizer):
    run_ranks(2, _holds, engine, zero, dtype, weights, gradients, optimizer)


def _tied_weights_count_once() -> None:
    counts = []
    for tied in ("true", "false"):
        run = settings({}, **{"model.tied_embeddings": tied})
        counts.append(make_engine(run, groups_of()).memory_usage().weights)
    assert counts[1] - counts[0] == 4 * 128 * 32


@pytest.mark.dist
def test_tied_weights_count_once():
    run_ranks(1, _tied_weights_count_once)


def _buckets_are_no_gradients(zero: str) -> None:
    grid = {"data": 2}
    offload = {"parallel.zero_stage": zero, "deepspeed.offload_optimizer": "cpu", "train.dtype": "bf16"}
    run, groups = settings(grid, **offload, **SPLIT_ALL), groups_of(**grid)
    engine = make_engine(run, groups)
    count = count_parameters(run.model)
    before, after = _at_the_update(engine, run, groups)
    # All of them as they came, and the half that is updated here, where the optimizer is.
    assert before.gradients <= 6 * count
    assert after.weights == (2 if zero != "3" else 1) * count
    assert after.optimizer == pytest.approx(12 * count // 2, rel=1e-3)


@pytest.mark.dist
@pytest.mark.parametrize("zero", ["1", "3"])
def test_a_bucket_is_no_gradient_because_gradients_lie_in_it(zero):
    run_ranks(2, _buckets_are_no_gradients, zero)
