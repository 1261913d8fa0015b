"""What the process of Weights & Biases hands over."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import pytest

from megads.config.sources.resolve import resolve
from megads.monitor.metrics import MetricsFile
from megads.monitor.rows import sealed
from megads.monitor.trackers import wandb_process as module
from megads.monitor.trackers.wandb_process import History, config_of
from tests.monitor.trackers.rows import save, step


def test_settings_are_handed_over_by_their_names_without_secrets():
    run = resolve("7B", env={"WANDB_RUN_GROUP": "https://me:hunter22@host/x"}, machine="generic").run
    config = config_of(run)
    assert config["train.seed"] == 1234
    assert config["track.wandb_group"] == "https://***@host/x"


class Run:
    """What the library calls a run."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []

    def log(self, row: dict[str, Any], step: int) -> None:
        self.logged.append((row, step))


def test_a_row_that_comes_late_goes_to_the_step_that_is_on():
    run = Run()
    history = History(run)
    for row in (step(1), step(2), save(1)):
        history.write(row)
    assert [at for _, at in run.logged] == [1, 2, 2]
    assert "iteration" not in run.logged[-1][0]


@pytest.mark.parametrize(("order", "is_well"), [("end\n", True), ("", False)])
def test_rows_are_taken_from_the_file_as_they_come_until_the_end(tmp_path, monkeypatch, order, is_well):
    monkeypatch.setattr(module, "POLL_S", 0.01)
    run, path = Run(), tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(step(1))
    known = path.stat().st_size
    here, there = os.pipe()
    with open(path, "rb") as rows, open(here) as orders:
        rows.seek(known)
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(History(run).follow(rows, orders)))
        thread.start()
        text = sealed(json.dumps(step(2, note="y" * 100_000))).encode() + b"\n"
        for part in (text[:5], text[5:-3], text[-3:]):
            file.file.write(part)
            time.sleep(0.02)
        file.write(step(3))
        os.write(there, order.encode())
        os.close(there)
        thread.join(30)
    file.close()
    assert found == [is_well]
    assert [at for _, at in run.logged] == [2, 3]
    assert run.logged[0][0] == {key: value for key, value in step(2, note="y" * 100_000).items() if value is not None}
