"""Predicted against measured: the line, rows and outcome of a run, and the next one that is predicted by it."""

from __future__ import annotations

import json

import pytest

from megads.monitor.measured import read_measured
from megads.plan.prediction import read_prediction
from megads.plan.time.anchor import anchored
from megads.plan.time.measured import MeasuredRun
from megads.plan.time.step import step_time


def told(megads, run_dir: str, word: str) -> list[str]:
    log = (megads.folder / run_dir / "log/run.log").read_text().splitlines()
    return [line for line in log if f"{word:8} " in line and "|" not in line]


@pytest.fixture(scope="module")
def measured(tmp_path_factory, cache):
    """A run of 14 steps, which predicts nothing of its time."""
    from tests.e2e.conftest import Command

    megads = Command(tmp_path_factory.mktemp("predicted"), cache)
    done = megads.train("first", TRAIN_ITERS="14", EVAL_INTERVAL="0")
    assert done.returncode == 0, done.stderr
    return megads


def test_a_cpu_without_an_anchor_has_memory_and_no_made_up_step(measured):
    assert told(measured, "first", "plan") == []
    assert not any("about" in line for line in told(measured, "first", "step"))
    outcome = json.loads((measured.folder / "first/outcome.json").read_text())
    assert set(outcome["predicted"]) == {"memory_bytes"}
    assert (outcome["device"], outcome["world_size"], outcome["per_host"]) == ("cpu", 1, 1)
    found = outcome["measured"]
    assert found["steps"] == 13
    sections = sum(found[f"{name}_s"] for name in ("forward", "backward", "optimizer"))
    assert 0 < sections < 14 * found["step_s"]
    assert outcome["predicted"]["memory_bytes"] == measured.rows("first")[0]["predicted_memory_bytes"]
    (line,) = [line for line in told(measured, "first", "memory") if "peak" in line]
    assert ", predicted " in line


def test_the_anchored_plan_of_a_run_is_its_own_measured_step(measured):
    """Within the scatter of its steps, or a thousandth of them."""
    found = read_measured(measured.folder / "first")
    assert isinstance(found, MeasuredRun)
    place = anchored(None, found)
    predicted = step_time(found.run, 1, place).step_s
    assert abs(predicted / found.step_s - 1) <= max(found.scatter, 1e-3)


def test_the_next_run_is_predicted_by_it_and_says_how_far_off_that_was(measured):
    done = measured.train("second", TRAIN_ITERS="12", EVAL_INTERVAL="0", PLAN_ANCHOR="first")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in told(measured, "second", "step") if "about" in line]
    assert " predicted (anchored on first), " in line
    plans = told(measured, "second", "plan")
    assert len(plans) == 2
    assert all(" per step, predicted " in each for each in plans)
    assert "; memory " in plans[0]
    given, problem = read_prediction(measured.folder / "second")
    assert problem == ""
    rows = [row for row in measured.rows("second") if "lm_loss" in row]
    assert [row["predicted_step_s"] for row in rows] == [given.step_s] * 12
    outcome = json.loads((measured.folder / "second/outcome.json").read_text())
    assert outcome["predicted"]["step_s"] == given.step_s


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"PLAN_ANCHOR": "nowhere"}, "PLAN_ANCHOR: nowhere: not found; pass a run folder"),
        ({"PLAN_ANCHOR": "."}, "PLAN_ANCHOR: .: not a run folder, it has no config.yaml"),
        ({"PLAN_ANCHOR": "first", "NGPU_PER_HOST": "2"}, "PLAN_ANCHOR: first: measured with 1 rank on a host"),
    ],
)
def test_an_anchor_that_cannot_be_used_ends_before_anything_is_made(measured, settings, problem):
    done = measured.train("third", **settings)
    assert done.returncode == 2
    assert problem in done.stderr.splitlines()[-1]
    assert not (measured.folder / "third").exists()
