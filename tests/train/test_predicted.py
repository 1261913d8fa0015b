"""Rank 0 finds what was predicted, or predicts by the device's own name, and keeps both numbers with the outcome."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.monitor.log import LOG
from megads.monitor.predicted import MeasuredStep
from megads.monitor.run_state.outcome import Outcome
from megads.plan.prediction import Prediction, predict, write_prediction
from megads.timing.stragglers import Busy, Stragglers
from megads.train.predicted import clues_of, comparison_of, recorded, report
from tests.plan.time.test_anchor import H100, NAME, run_of


def training_of(folder: Any, device: str = "cuda", name: str = NAME, units: int = 132) -> Any:
    vendor = SimpleNamespace(
        device_name=lambda device: name, units=lambda device: units, memory_bytes=lambda device: 7, name="nvidia"
    )
    grid = SimpleNamespace(world_size=2)
    groups = SimpleNamespace(grid=grid, rank=0)
    return SimpleNamespace(
        run=run_of(2), run_dir=folder, vendor=vendor, device=torch.device(device), groups=groups, hosts=["a", "a"]
    )


@pytest.fixture
def logged(caplog, monkeypatch):
    monkeypatch.setattr(LOG, "propagate", True)
    caplog.set_level(logging.INFO, LOG.name)
    return caplog


def test_the_launchers_prediction_is_kept(tmp_path, logged):
    given = predict(run_of(2), 2, 99, H100)
    write_prediction(tmp_path, given)
    assert comparison_of(training_of(tmp_path)).prediction == given
    assert logged.messages == []


def test_a_device_that_the_launcher_did_not_know_is_predicted_here(tmp_path, logged):
    write_prediction(tmp_path, Prediction(99))
    found = comparison_of(training_of(tmp_path)).prediction
    assert found == predict(run_of(2), 2, 99, H100)
    assert logged.messages == [f"step     {found.line()}"]


def test_another_device_than_the_machines_is_predicted_anew(tmp_path, logged):
    write_prediction(tmp_path, predict(run_of(2), 2, 99, H100))
    found = comparison_of(training_of(tmp_path, name="NVIDIA H200")).prediction
    assert found.device == "NVIDIA H200"
    (line,) = logged.messages
    assert " predicted (h200; on measured runs off by " in line


@pytest.mark.parametrize("how", [{"device": "cpu", "name": "cpu"}, {"name": "simulated device"}, {"units": 16}])
def test_nothing_is_made_up_for_a_cpu_an_unknown_device_or_a_part_of_one(tmp_path, logged, how):
    write_prediction(tmp_path, Prediction(99))
    assert comparison_of(training_of(tmp_path, **how)).prediction == Prediction(99)
    assert logged.messages == []


def test_a_damaged_prediction_is_one_line_and_no_end(tmp_path, logged):
    (tmp_path / "predicted.json").write_text("{")
    assert comparison_of(training_of(tmp_path, "cpu", "cpu")).prediction == Prediction()
    (line,) = logged.messages
    assert line.startswith(f"{tmp_path}/predicted.json: no prediction to compare with: ")


def test_clues_name_the_straggler(tmp_path):
    training = training_of(tmp_path)
    slow = Busy(1, 0.4, 0.2)
    assert clues_of(training, Stragglers(slow, (slow,))).straggler.startswith("rank 1 on a computes 2.00 times as long")
    assert clues_of(training, Stragglers(slow, ())).straggler == ""
    assert clues_of(training, None).is_compiled


def test_the_outcome_has_both(tmp_path):
    given = predict(run_of(2), 2, 99, H100)
    write_prediction(tmp_path, given)
    training = training_of(tmp_path)
    comparison = comparison_of(training)
    batch = training.run.train.global_batch
    for took in (9.0, 0.5, 0.5):
        comparison.add(MeasuredStep(took, 0.0, {}), batch)
    outcome = recorded(training, comparison, Outcome(0, "done", 3, "done"))
    assert (outcome.exit_code, outcome.iteration, outcome.device) == (0, 3, NAME)
    assert (outcome.world_size, outcome.per_host) == (2, 2)
    assert outcome.predicted == {"step_s": given.step_s, "tokens_per_s": given.tokens_per_s, "memory_bytes": 99}
    assert (outcome.measured["step_s"], outcome.measured["steps"], outcome.measured["memory_bytes"]) == (0.5, 2, 7)
    assert outcome.measured["tokens_per_s"] == batch * 4096 / 0.5


def test_lines_that_say_nothing_are_not_logged(logged):
    report("")
    report("1 s per step")
    assert logged.messages == ["plan     1 s per step"]
