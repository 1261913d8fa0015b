"""What a run reports its steps: rows of each step alone, lines of all since the last one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.config.settings.log import TrackConfig
from megads.engine.base import StepResult
from megads.monitor.log import LOG, start_log
from megads.monitor.metrics import read_metrics
from megads.monitor.trackers.tensorboard import TensorBoard
from megads.train.loop import Loop
from tests.monitor.trackers.test_tensorboard import points
from tests.train.test_saving import _as_before, loop_of  # noqa: F401 - the fixture

LOSSES = [7.0, 6.0, 5.0, 4.5, 9.0, 4.0, 3.5, 3.0]


def told_by(folder: Path, skipped: tuple[int, ...] = (), **settings: str) -> Loop:
    """Return the loop of a run of eight steps, not started; the log goes to ``run.log`` in ``folder`` too."""
    loop = loop_of(folder, **{"checkpoint.save_interval": "0", **settings})
    engine: Any = loop.training.engine
    usual = engine.train_step

    def train_step(batches: Any, lr: float, **rates: Any) -> StepResult:
        usual(batches, lr, **rates)
        is_skipped = engine.steps in skipped
        return StepResult(torch.tensor(LOSSES[engine.steps - 1]), 1.0, is_skipped, 1.0)

    engine.train_step = train_step
    loop.probes.is_first = False  # at memory, of which this engine has none
    return loop


@pytest.fixture
def lines(tmp_path, capsys):
    """Return what a run says on the console and in its log file."""
    before, propagates, level = LOG.handlers, LOG.propagate, LOG.level

    def said(run: Callable[[], object], log_level: str = "info") -> tuple[list[str], list[str]]:
        start_log(0, log_level, tmp_path / "run.log")
        run()
        written = (tmp_path / "run.log").read_text() if (tmp_path / "run.log").exists() else ""
        return capsys.readouterr().err.splitlines(), written.splitlines()

    yield said
    for handler in LOG.handlers:
        handler.close()
    LOG.handlers, LOG.propagate = before, propagates
    LOG.setLevel(level)


def usual(found: list[str]) -> list[tuple[int, float]]:
    matches = (re.search(r"step +(\d+)/8 \| loss +([\d.]+)", line) for line in found)
    return [(int(match[1]), float(match[2])) for match in matches if match]


def family(found: list[str]) -> list[tuple[int, float, int]]:
    pattern = r"iteration +(\d+)/ +8 \|.* lm loss: ([\d.E+]+) \|.*skipped iterations: +(\d+) \|"
    matches = (re.search(pattern, line) for line in found)
    return [(int(match[1]), float(match[2]), int(match[3])) for match in matches if match]


@pytest.mark.parametrize("line", ["megads", "megatron"])
def test_the_log_file_has_both_lines_and_the_console_the_one_asked_for(tmp_path, lines, line):
    console, file = lines(told_by(tmp_path, **{"log.log_line": line}).run)
    whole = [(i + 1, loss) for i, loss in enumerate(LOSSES)]
    assert usual(file) == whole
    assert [each[:2] for each in family(file)] == whole
    assert usual(console) == (whole if line == "megads" else [])
    assert [each[:2] for each in family(console)] == ([] if line == "megads" else whole)


def test_lines_are_means_of_the_interval_and_rows_of_their_own_step(tmp_path, lines):
    console, file = lines(told_by(tmp_path, skipped=(5,), **{"log.log_interval": "4"}).run)
    assert usual(console) == [(4, 5.625), (5, 9.0), (8, 3.5)]
    assert "SKIPPED, gradient is NaN or Inf" in next(line for line in console if "step 5/8" in line)
    assert family(file) == [(4, 5.625, 0), (8, 3.5, 1)]
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "lm_loss" in row]
    assert [(row["iteration"], row["lm_loss"], row.get("lm_loss_mean")) for row in rows] == [
        (4, 4.5, 5.625),
        (5, 9.0, None),
        (8, 3.0, 3.5),
    ]
    assert [row["skipped_iterations"] for row in rows] == [0, 1, 1]


def test_the_last_loss_is_the_mean_that_the_last_line_shows(tmp_path):
    loop = told_by(tmp_path / "even", **{"log.log_interval": "4"})
    assert loop.reporter is not None
    assert loop.reporter.last_loss() is None
    loop.run()
    assert loop.reporter.last_loss() == sum(LOSSES[4:]) / 4
    # Steps behind the last line count by themselves.
    loop = told_by(tmp_path / "odd", **{"log.log_interval": "3"})
    loop.run()
    assert loop.reporter is not None
    assert loop.reporter.last_loss() == sum(LOSSES[6:]) / 2


def test_tensorboard_has_its_own_interval_and_the_values_of_the_rows(tmp_path):
    loop = told_by(tmp_path, **{"log.log_interval": "3"})
    board = TensorBoard(
        TrackConfig(tensorboard_log_interval=2),
        tmp_path / "tb",
        "run",
        run_dir=tmp_path,
        iteration=0,
        samples=0,
        world_size=1,
    )
    assert loop.reporter is not None
    loop.reporter.metrics.trackers.append(board)
    loop.run()
    loop.reporter.metrics.close()
    found = points(tmp_path / "tb")
    assert found["lm loss"] == [(i, LOSSES[i - 1]) for i in (2, 4, 6, 8)]
    assert found["lm loss vs samples"] == [(i * 16, LOSSES[i - 1]) for i in (2, 4, 6, 8)]
    rows = {row["iteration"]: row for row in read_metrics(tmp_path / "metrics.jsonl") if "lm_loss" in row}
    assert sorted(rows) == [3, 6]
    assert dict(found["lm loss"])[6] == rows[6]["lm_loss"]
    assert dict(found["learning-rate"])[6] == pytest.approx(rows[6]["learning_rate"], rel=1e-7)


def test_a_log_level_without_lines_still_has_rows(tmp_path, lines):
    assert lines(told_by(tmp_path).run, "warning") == ([], [])
    assert len([row for row in read_metrics(tmp_path / "metrics.jsonl") if "lm_loss" in row]) == 8


def test_a_loss_of_several_terms_has_them_in_rows_and_lines(tmp_path, lines):
    loop = told_by(tmp_path, **{"log.log_interval": "4"})
    engine: Any = loop.training.engine
    usual_step = engine.train_step

    def train_step(batches: Any, lr: float, **rates: Any) -> StepResult:
        result = usual_step(batches, lr, **rates)
        return replace(result, losses={"lm_loss": result.loss - 0.5, "sop_loss": torch.tensor(0.5)})

    engine.train_step = train_step
    console, file = lines(loop.run)
    assert any("loss  5.6250 (lm 5.1250, sop 0.5000) |" in line for line in console)
    assert any(" lm loss: 5.125000E+00 | sop loss: 5.000000E-01 |" in line for line in file)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "lm_loss" in row]
    names = ("iteration", "loss", "lm_loss", "sop_loss", "lm_loss_mean", "sop_loss_mean")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (4, 4.5, 4.0, 0.5, 5.125, 0.5),
        (8, 3.0, 2.5, 0.5, 4.375, 0.5),
    ]
