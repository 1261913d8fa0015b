"""A sweep of the learning rate gives the same table on every layout."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from megads.monitor.sweep import Sweep
from tests.engine.plain import batches, make_engine, settings
from tests.ranks import groups_of, run_ranks

SWEEP = {"lr_finder.enabled": "1", "lr_finder.iters": "8", "lr_finder.smoothing": "0.5", "lr_finder.lowest": "1e-4"}


def _sweep(grid: dict[str, int], changes: dict[str, str]) -> list[tuple[float, float, float]]:
    import torch

    from megads.checkpoint.resume.progress import Progress
    from megads.train.lr_finder import run_sweep

    run, groups = settings(grid, **SWEEP, **changes), groups_of(**grid)
    micro = [each for step in range(20) for each in batches(run, step, groups.data_rank)]
    training: Any = SimpleNamespace(
        run=run,
        groups=groups,
        engine=make_engine(run, groups),
        progress=Progress(),
        device=torch.device("cpu"),
        batches=lambda split, consumed: nullcontext(iter(micro)),
        micro_batches_of=lambda batch: batch // (run.train.micro_batch * groups.data_size),
    )
    sweep = Sweep(run.lr_finder)
    assert run_sweep(training, sweep, SimpleNamespace(agreed=lambda: "")) == ""
    return [(point.lr, point.loss, point.smoothed) for point in sweep.points]


def _same_as(grid: dict[str, int], changes: dict[str, str], expected: list[tuple[float, float, float]]) -> None:
    for mine, other in zip(_sweep(grid, changes), expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)


def _save(path: Any) -> None:
    path.write_text(repr(_sweep({}, {"parallel.zero_stage": "0"})))


@pytest.mark.dist
def test_every_layout_gives_the_same_table(tmp_path):
    import ast

    run_ranks(1, _save, tmp_path / "one")
    expected = ast.literal_eval((tmp_path / "one").read_text())
    assert [lr for lr, _, _ in expected] == pytest.approx([1e-4 * 10 ** (4 * i / 7) for i in range(8)])
    assert expected[0][1] == pytest.approx(math.log(128), abs=0.3)
    assert min(loss for _, loss, _ in expected) < expected[0][1] - 0.1
    for grid in ({"tensor": 2}, {"data": 2}, {"pipe": 2}):
        run_ranks(2, _same_as, grid, {"parallel.zero_stage": "1"}, expected, timeout_s=240)


def _gives_up() -> None:
    from megads.train.lr_finder import run_sweep

    asked = iter(["", "", "a request"])
    run, groups = settings({}, **SWEEP), groups_of()
    micro = [each for step in range(20) for each in batches(run, step, 0)]
    skipped = iter([True, True, False, False, False])
    engine = SimpleNamespace(train_step=lambda parts, lr, **rates: SimpleNamespace(skipped=next(skipped), loss=5.0))
    training: Any = SimpleNamespace(
        run=run,
        groups=groups,
        engine=engine,
        progress=SimpleNamespace(iteration=15, consumed_samples=120),  # 8 of 20 steps are not left
        device="cpu",
        batches=lambda split, consumed: nullcontext(iter(micro if consumed == 0 else ())),
        micro_batches_of=lambda batch: 4,
    )
    sweep = Sweep(run.lr_finder)
    assert run_sweep(training, sweep, SimpleNamespace(agreed=lambda: next(asked))) == "a request"
    # Two steps overflowed and say nothing of their rates; the third tried the first one.
    assert [point.lr for point in sweep.points] == [1e-4]


def test_steps_that_overflow_do_not_count_and_a_request_ends_it():
    run_ranks(1, _gives_up)
