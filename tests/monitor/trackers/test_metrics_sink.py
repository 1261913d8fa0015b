"""Rows reach everybody; whoever fails is reported once and skipped."""

from __future__ import annotations

import csv
import logging
from typing import Any

import pytest

from megads.monitor.metrics import MetricsFile, read_metrics
from megads.monitor.trackers.csv_table import COLUMNS, Table
from megads.monitor.trackers.metrics_sink import MetricsSink, opened
from tests.monitor.trackers.rows import run_of, step


class Kept:
    """A tracker that keeps its rows, and fails where the test wants it to."""

    name = "Kept"

    def __init__(self, every: int = 0, fails: str = ""):
        self.every, self.fails, self.rows = every, fails, list[dict[str, Any]]()
        self.ended: list[str] = []

    def _maybe(self, where: str) -> None:
        if where == self.fails:
            raise OSError("token=abcdefgh is no good")

    def write(self, row: Any) -> None:
        self._maybe("write")
        self.rows.append(row)

    def close(self) -> None:
        self._maybe("close")
        self.ended.append("close")

    def settle(self) -> str:
        self._maybe("settle")
        self.ended.append("settle")
        return "all is well"


@pytest.mark.parametrize("fails", ["write", "close", "settle"])
def test_a_tracker_that_fails_is_told_once_and_the_others_go_on(tmp_path, fails, caplog):
    caplog.set_level(logging.INFO, logger="megads")
    bad, good = Kept(fails=fails), Kept()
    tracks = MetricsSink(MetricsFile(tmp_path / "metrics.jsonl"), [bad, good])
    for row in run_of(6):
        tracks.write(row)
    tracks.close()
    tracks.settle()
    assert read_metrics(tmp_path / "metrics.jsonl") == good.rows == run_of(6)
    assert good.ended == ["close", "settle"]
    told = [text for text in caplog.messages if "is disabled" in text]
    assert told == ["Kept is disabled, the run continues: OSError: token=*** is no good"]


def test_a_tracker_that_can_not_be_opened_is_told_and_left_out(caplog):
    caplog.set_level(logging.INFO, logger="megads")
    assert opened("It", lambda: Kept()) != []

    def fail() -> Any:
        raise ModuleNotFoundError("no such thing")

    assert opened("It", fail) == []
    assert caplog.messages == ["It cannot be used, the run continues: ModuleNotFoundError: no such thing"]


def test_a_tracker_may_count_steps_of_its_own(tmp_path):
    own, told = Kept(every=3), Kept()
    tracks = MetricsSink(MetricsFile(tmp_path / "metrics.jsonl"), [own, told])
    assert [i for i in range(1, 8) if tracks.wants(i)] == [3, 6]
    for i in range(1, 8):
        tracks.write(step(i), told=i % 2 == 0)
    tracks.write({"iteration": 7, "valid_loss": 1.0})
    tracks.close()
    assert [row["iteration"] for row in own.rows] == [3, 6, 7]
    assert [row["iteration"] for row in told.rows] == [2, 4, 6, 7]
    assert read_metrics(tmp_path / "metrics.jsonl") == told.rows


def cells(path: Any) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: float(v) for k, v in row.items() if v is not None} for row in rows]


def test_the_table_has_the_values_of_the_rows_and_stable_columns(tmp_path):
    path = tmp_path / "metrics.csv"
    table = Table(path)
    rows = [step(1, grad_norm=None), *run_of(10, first=2), {"iteration": 10, "extra": 3}]
    for row in rows:
        table.write(row)
    table.write({**step(11), "lm_loss": float("nan")})
    table.close()
    assert cells(path)[:-1] == numbers(rows)
    assert "lm_loss" not in cells(path)[-1]
    header = path.read_text().splitlines()[0].split(",")
    assert header[: len(COLUMNS)] == list(COLUMNS)
    assert header[len(COLUMNS) :] == ["valid_loss/books", "extra"]


def test_on_resume_the_table_drops_the_rows_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    first = Table(path)
    for row in run_of(9):
        first.write(row)
    first.close()
    with open(path, "a") as file:
        file.write("9,72,")  # a kill in the middle of a line
    second = Table(path, 5)
    for row in run_of(12, first=6):
        second.write(row)
    second.close()
    assert cells(path) == numbers(run_of(12))
    Table(path, 0).close()
    assert cells(path) == []


def test_what_the_voice_raises_keeps_no_row_back(tmp_path):
    tracks = MetricsSink(MetricsFile(tmp_path / "metrics.jsonl"))
    tracks.voice.soon(lambda: tracks.write(step(1)))
    tracks.voice.soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tracks.close()
    assert tracks.file.file.closed
    assert read_metrics(tmp_path / "metrics.jsonl") == [step(1)]
