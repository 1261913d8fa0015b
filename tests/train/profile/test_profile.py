"""Traces of steps that come, and of those that do not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.config.settings.profile import ProfileConfig
from megads.device.vendor import vendor
from megads.train.profile.profile import Tracer


def _training(folder: Path, steps: str) -> Any:
    run = SimpleNamespace(profile=ProfileConfig(steps=steps))
    place = {"vendor": vendor({"MEGADS_DEVICE": "cpu"}), "device": torch.device("cpu"), "run_dir": folder}
    return SimpleNamespace(run=run, groups=SimpleNamespace(rank=3), progress=SimpleNamespace(iteration=0), **place)


def _go(tracer: Tracer, first: int, last: int) -> None:
    for iteration in range(first, last + 1):
        with tracer.step(iteration):
            torch.ones(4) @ torch.ones(4)
        tracer.training.progress.iteration = iteration


def _steps(path: Path) -> set[str]:
    with gzip.open(path, "rt") as file:
        return {e["name"] for e in json.load(file)["traceEvents"] if str(e.get("name")).startswith("step ")}


@pytest.mark.parametrize(
    ("first", "last", "name", "steps"),
    [
        (1, 6, "rank-3-step-3-4", {"step 3", "step 4"}),
        (4, 6, "rank-3-step-4-4", {"step 4"}),  # resumed in the middle
        (1, 3, "rank-3-step-3-3", {"step 3"}),  # stopped in the middle
    ],
)
def test_the_steps_that_were_asked_for_are_in_the_trace(tmp_path, first, last, name, steps):
    tracer = Tracer(_training(tmp_path, "3-4"))
    _go(tracer, first, last)
    assert tracer.is_done == (last >= 4)
    tracer.close()
    assert _steps(tmp_path / "profile" / f"{name}.json.gz") == steps
    assert "aten::" in (tmp_path / "profile" / f"{name}.txt").read_text()


def test_steps_that_never_come_write_nothing(tmp_path):
    tracer = Tracer(_training(tmp_path, "8-9"))
    _go(tracer, 1, 3)
    tracer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_ends_no_run(tmp_path, caplog):
    (tmp_path / "profile").write_text("in the way")
    _go(Tracer(_training(tmp_path, "1-1")), 1, 2)
    assert "is not written" in caplog.text
