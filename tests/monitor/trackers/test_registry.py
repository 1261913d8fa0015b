"""The settings choose the trackers; one that cannot be opened is reported and skipped."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from pathlib import Path

import pytest

from megads.config.sources.resolve import resolve
from megads.monitor.metrics import read_metrics
from megads.monitor.trackers.registry import TRACKERS, TrackerSpec, open_trackers, opened
from tests.monitor.trackers.rows import run_of

START = {"iteration": 0, "samples": 0, "world_size": 1}


def test_the_settings_open_the_trackers_and_all_get_the_rows(tmp_path):
    run = resolve("7B", env={"METRICS_CSV": "1", "NO_TENSORBOARD": "1", "WANDB_DISABLED": "1"}, machine="generic").run
    sink = open_trackers(run, tmp_path, {}, **START)
    assert [tracker.name for tracker in sink.trackers] == ["metrics.csv"]
    for row in run_of(3):
        sink.write(row)
    sink.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == run_of(3)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4


def test_a_tracker_that_can_not_be_opened_is_reported_and_skipped(caplog):
    caplog.set_level(logging.INFO, logger="megads")
    spec = TrackerSpec("It", "no_such_module", lambda track: True)
    assert opened(spec, None) == []  # type: ignore[arg-type]
    (line,) = caplog.messages
    assert line.startswith("It cannot be used, the run continues: ModuleNotFoundError: No module named")


@pytest.mark.parametrize("spec", TRACKERS, ids=lambda spec: spec.module)
def test_every_row_names_what_it_needs(spec):
    module = import_module(f"megads.monitor.trackers.{spec.module}")
    assert callable(module.open_tracker)
    track = resolve("7B", env={}, machine="generic").run.track
    assert set(spec.settings) <= set(type(track).model_fields)
    assert bool(spec.package) == bool(spec.settings) == bool(spec.without)


def test_the_documented_diff_is_that_of_the_code():
    root = Path(__file__).parents[3]
    section = (root / "docs/extending.md").read_text().partition("## A tracker")[2].partition("\n## ")[0]
    diff = section.partition("```diff")[2].partition("```")[0]
    files = re.split(r"^--- .*\n\+\+\+ b/", diff, flags=re.MULTILINE)[1:]
    assert len(files) == 3
    for name, _, lines in (each.partition("\n") for each in files):
        added = "".join(line[1:] + "\n" for line in lines.splitlines() if line.startswith("+"))
        assert added in (root / name).read_text()
