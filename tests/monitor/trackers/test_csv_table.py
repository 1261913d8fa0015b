"""``metrics.csv`` has the values of the rows under stable columns, also after a resume."""

from __future__ import annotations

import csv
from typing import Any

from megads.monitor.trackers.csv_table import COLUMNS, Table
from tests.monitor.trackers.rows import run_of, step


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
