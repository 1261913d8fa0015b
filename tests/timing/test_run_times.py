"""A run tells what its steps' time was spent on, and which rank holds the others up."""

from __future__ import annotations

import logging
import statistics
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from megads.engine.base import StepResult
from megads.monitor.log import LOG
from megads.monitor.metrics import read_metrics
from megads.timing import collectives
from megads.timing.sections import BACKWARD, FORWARD, OPTIMIZER, section
from tests.ranks import run_ranks
from tests.train.test_saving import Engine, _as_before, loop_of

__all__ = ["_as_before"]  # a fixture

ALL = {"times.straggler_interval": "4", "train.eval_iters": "0", "train.global_batch": "12"}


class Scripted(Engine):
    """Its passes take as long as they are told to, and then all ranks meet."""

    forward_s, backward_s, optimizer_s, between_s = 0.01, 0.02, 0.004, 0.002
    scale = 1

    def train_step(self, batches: list[torch.Tensor], lr: float, **rates: object) -> StepResult:
        with section(FORWARD):
            time.sleep(self.forward_s * self.scale)
        with section(BACKWARD):
            time.sleep(self.backward_s * self.scale)
            if self.groups.world is not None:
                collectives.all_reduce(torch.zeros(1), group=self.groups.world)
        with section(OPTIMIZER):
            time.sleep(self.optimizer_s * self.scale)
        time.sleep(self.between_s * self.scale)
        return super().train_step(batches, lr, **rates)


def _scripted(folder: Path, **more: str):
    loop = loop_of(folder, 12, **ALL, **more)
    t = loop.training
    t.engine = Scripted(t.groups, 12)
    loop.probes.is_first = False  # the memory of an engine that has none
    t.hosts = [f"host{rank // 2}" for rank in range(t.groups.grid.world_size)]
    return loop


def _rows(folder: Path):
    return [row for row in read_metrics(folder / "metrics.jsonl") if "lm_loss" in row]


def _pauses(folder: Path):
    rows = read_metrics(folder / "metrics.jsonl")
    return {row["iteration"]: row["save_pause_s"] for row in rows if "save_s" in row}


@contextmanager
def _messages():
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    LOG.addHandler(handler)
    try:
        yield told
    finally:
        LOG.removeHandler(handler)


def test_every_row_says_what_its_step_was_spent_on(tmp_path):
    loop = _scripted(tmp_path)
    batches = loop.training.batches
    late = 0.03

    @contextmanager
    def slow_to_come(split, consumed=0):
        class Late:
            def __next__(self):
                time.sleep(late)
                return next(plain)

        with batches(split, consumed) as plain:
            yield Late()

    loop.training.batches = slow_to_come
    loop.run()
    rows = _rows(tmp_path)
    assert len(rows) == 8
    engine, micro_batches = loop.training.engine, loop.training.run.train.grad_acc_steps
    parts = ("data", "forward", "backward", "communication", "optimizer", "other")
    for row in rows:
        assert sum(row[f"time/{part}_s"] for part in parts) == pytest.approx(row["step_time_s"], abs=1e-9)
        assert row["time/data_s"] == row["data_wait_s"] >= late * micro_batches
        assert row["time/forward_s"] >= engine.forward_s
        assert row["time/backward_s"] >= engine.backward_s
        assert row["time/optimizer_s"] >= engine.optimizer_s
        assert row["time/other_s"] >= engine.between_s
        assert row["time/communication_s"] == 0
        assert "straggler_ratio" not in row
    # A save stands between the steps 2 and 3: it is reported with step 3.
    pauses = _pauses(tmp_path)
    for row in rows:
        assert row["time/save_s"] >= pauses.get(row["iteration"] - 1, 0.0)
        assert (row["time/save_s"] > 0) == (row["iteration"] - 1 in pauses)
    assert loop.timing.shares.line().startswith("forward ")


def test_with_fewer_rows_a_row_is_still_about_its_own_step(tmp_path):
    loop = _scripted(tmp_path, **{"log.log_interval": "4"})
    loop.run()
    # Trackers may take every step: what came before others is not told again. Saves have rows of their own.
    assert [(row["iteration"], row["time/save_s"]) for row in _rows(tmp_path)] == [(4, 0.0), (8, 0.0)]
    assert set(_pauses(tmp_path)) >= {2, 4, 6}


def test_times_can_be_left_out(tmp_path):
    loop = _scripted(tmp_path, **{"times.split": "false"})
    loop.run()
    assert not [name for row in _rows(tmp_path) for name in row if name.startswith("time/")]
    assert not loop.timing.shares.line()


def _straggler(folder: Path, slow: dict[int, float]) -> None:
    with _messages() as told:
        # So far apart that a busy host makes none: 72 ms, and half of that more in most steps.
        loop = _scripted(folder, **{"times.straggler_ratio": "1.5"})
        rank = loop.training.groups.rank
        loop.training.engine.scale = 2
        loop.training.engine.forward_s += slow.get(rank, 0.0)
        loop.run()
    if rank:
        return
    lines = [text for text in told if text.startswith("straggler:")]
    looks = [row for row in read_metrics(folder / "metrics.jsonl") if "straggler_ratio" in row]
    assert [row["iteration"] for row in looks] == [4, 8]
    steps = _rows(folder)
    if not slow:
        assert lines == []
        assert all("straggler_rank" not in row for row in looks)
        return
    assert len(lines) == 2
    first = min(slow)
    assert all(row["straggler_rank"] in slow for row in looks)
    assert all(row["straggler_ratio"] > 1.5 for row in looks)
    who = f"rank {first} on host{first // 2}" if len(slow) == 1 else "host host1 (2 ranks: 2, 3)"
    assert all(text.startswith(f"straggler: {who} computes ") for text in lines), lines
    # The others wait for it; their step takes as long.
    assert statistics.median(row["time/communication_s"] for row in steps) > slow[first]


@pytest.mark.dist
@pytest.mark.parametrize("slow", [{}, {2: 0.05}, {2: 0.05, 3: 0.06}], ids=["none", "one", "host"])
def test_a_rank_that_computes_longer_is_told_and_no_other(tmp_path, slow):
    run_ranks(6, _straggler, tmp_path, slow)
