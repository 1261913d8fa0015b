"""The fp16 loss scale, step by step, against a table written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.plain import batches, make_engine, on, rate, saved, settings
from tests.ranks import groups_of, run_ranks

# Start 2**16, window 3, hysteresis 2, minimum 2**13. Each step is good (g) or bad (b), and the scale after it:
TABLE = [
    ("g", 65536),
    ("g", 65536),
    ("g", 131072),  # three good ones in a row
    ("b", 131072),  # the first bad one only takes patience
    ("b", 65536),
    ("b", 32768),  # patience does not come back by itself
    ("g", 32768),
    ("g", 32768),
    ("b", 16384),  # nor by good steps that are too few
    ("g", 16384),
    ("g", 16384),
    ("g", 32768),  # here it does
    ("g", 32768),
    ("g", 32768),
    ("g", 65536),  # three more after a doubling
    ("b", 65536),
    ("g", 65536),
    ("b", 32768),
    ("b", 16384),
    ("b", 8192),
    ("b", 8192),  # the minimum; the run continues, MAX_SKIPPED_STEPS ends it
    ("g", 8192),
    ("g", 8192),
    ("g", 16384),
]
RULES = {
    "train.dtype": "fp16",
    "optim.loss_scale_window": "3",
    "optim.loss_scale_hysteresis": "2",
    "optim.initial_loss_scale_power": "10",
    "optim.min_loss_scale": "128",
}
SMALLER = 2**6
"""Real gradients of a small model would overflow at 2**17, so that engines begin lower."""

CASES: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "zero0": ({}, {"parallel.zero_stage": "0"}),
    "dp2-zero1": ({"data": 2}, {"parallel.zero_stage": "1"}),
    "dp2-zero2": ({"data": 2}, {"parallel.zero_stage": "2"}),
    "dp2-zero3": ({"data": 2}, {"parallel.zero_stage": "3"}),
    "tp2": ({"tensor": 2}, {}),
    "pp2": ({"pipe": 2}, {}),
}
QUICK = ("dp2-zero1", "dp2-zero3", "pp2")


def _scales(scaler: Any, update: Callable[[bool], None]) -> list[tuple[str, float]]:
    found = []
    for kind, _ in TABLE:
        update(kind == "b")
        found.append((kind, scaler.cur_scale))
    return found


def test_the_scale_follows_the_table():
    from megads.engine.loss_scale import LossScale

    rules = {**RULES, "optim.initial_loss_scale_power": "16", "optim.min_loss_scale": "8192"}
    scale = LossScale.of(settings({}, **rules))
    assert scale is not None
    assert _scales(scale, scale.update) == TABLE


def test_the_scale_of_deepspeed_follows_the_table():
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from megads.engine.deepspeed.skipped_step import scale_by_rules

    scaler = DynamicLossScaler(2.0**16, 3, 2.0**13, 2, consecutive_hysteresis=False)
    scale_by_rules(SimpleNamespace(loss_scaler=scaler))
    assert _scales(scaler, scaler.update_scale) == TABLE


def test_only_fp16_has_a_scale_and_one_that_is_set_stays():
    from megads.engine.loss_scale import LossScale

    assert LossScale.of(settings({}, **{"train.dtype": "bf16"})) is None
    static = LossScale.of(settings({}, **{"train.dtype": "fp16", "optim.loss_scale": "128"}))
    dynamic = LossScale.of(settings({}, **{"train.dtype": "fp16"}))
    assert static is not None
    assert dynamic is not None
    static.update(True)
    assert (static.cur_scale, static.counts()) == (128.0, {})
    dynamic.update(True)
    counts = {"cur_scale": 2.0**16, "cur_iter": 1.0, "last_overflow_iter": 0.0, "cur_hysteresis": 1.0}
    assert dynamic.counts() == counts
    static.set_counts(counts)
    assert static.cur_scale == 128.0
    other = LossScale.of(settings({}, **{"train.dtype": "fp16"}))
    assert other is not None
    other.set_counts(counts)
    assert other == dynamic


def test_the_first_scale_and_the_window_are_the_settings():
    from megads.config.deepspeed.dictionary import deepspeed_config

    fp16 = deepspeed_config(settings({}, **{"train.dtype": "fp16"}), 1)["fp16"]
    names = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale", "loss_scale")
    assert [fp16[name] for name in names] == [16, 1000, 2, 1, 0.0]


class _Overflow:
    """Makes gradients infinite on the last rank, when told to."""

    def __init__(self, engine: Any, groups: Any):
        self.is_on = False
        if groups.rank == groups.grid.world_size - 1:
            next(engine.module.parameters()).register_hook(self)

    def __call__(self, grad: Any) -> Any:
        return grad * math.inf if self.is_on else grad


def _groups(grid: dict[str, int]) -> Any:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups

    return groups_of(**grid) if grid else Groups(Grid(), 0)


def _engine_follows_the_table(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    whole = {} if "pipe" in grid else {"train.grad_acc_steps": "1", "train.micro_batch": str(8 // grid.get("data", 1))}
    run, groups = settings(grid, **{**RULES, **whole, **changes}), _groups(grid)
    engine = make_engine(run, groups)
    overflow, scale, found = _Overflow(engine, groups), 2.0**10, []
    for step, (kind, _) in enumerate(TABLE):
        before = saved(engine)
        overflow.is_on = kind == "b"
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step % 6))
        assert (result.skipped, result.loss_scale, result.rejected) == (kind == "b", scale, False), f"step {step + 1}"
        scale = engine.loss_scale
        found.append((kind, scale * SMALLER))
        after = saved(engine)
        same = all(torch.equal(after[n][kind], t) for n, kinds in before.items() for kind, t in kinds.items())
        assert same == result.skipped
    assert found == TABLE


@pytest.mark.dist
@pytest.mark.parametrize(("case", "engine"), [*((case, "deepspeed") for case in QUICK), ("dp2-zero2", "native")])
def test_engines_follow_the_table(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _engine_follows_the_table, grid, on(engine, changes), timeout_s=180)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, "deepspeed") for case in CASES if case not in QUICK),
        *((case, "native") for case in ("pp2", "tp2", "dp2-zero3")),
    ],
)
def test_every_engine_follows_the_table(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _engine_follows_the_table, grid, on(engine, changes), timeout_s=180)


def _static_scale_stays(grid: dict[str, int], changes: dict[str, str]) -> None:
    run = settings(grid, **{"train.dtype": "fp16", "optim.loss_scale": "256", **changes})
    groups = _groups(grid)
    engine = make_engine(run, groups)
    overflow, said = _Overflow(engine, groups), []
    for step, kind in enumerate("gbbbg"):
        overflow.is_on = kind == "b"
        result = engine.train_step(batches(run, step, groups.data_rank), rate(step))
        said.append((result.skipped, result.loss_scale, engine.loss_scale))
    assert said == [(kind == "b", 256.0, 256.0) for kind in "gbbbg"]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "engine"), [("dp2-zero1", "deepspeed"), ("pp2", "deepspeed"), ("dp2-zero1", "native")]
)
def test_a_static_scale_stays_and_bad_steps_are_left_out(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _static_scale_stays, grid, on(engine, changes), timeout_s=180)
