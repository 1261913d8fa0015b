"""What is written of a benchmark: tables, Markdown that pastes into a page, JSON; a verdict that hides nothing."""

from __future__ import annotations

import json

import pytest

from megads.bench.results import PartResult, Report, shown


def part(status: str = "done", **changes: object) -> PartResult:
    rows = [{"dtype": "bf16", "rate": 12345.6, "share": 0.4321, "hidden": 7}, {"dtype": "fp32", "share": None}]
    columns = {"dtype": "dtype", "rate": "TFLOP/s", "share": "% of peak"}
    made = PartResult("matmul", "matrix products", columns, rows, status=status, seconds=2.4)  # type: ignore[arg-type]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_part_is_a_table():
    assert part(notes=["one shape dropped"]).lines().splitlines() == [
        "matmul       done         2s  matrix products",
        "             dtype  TFLOP/s  % of peak",
        "             bf16     12346       43.2",
        "             fp32         -          -",
        "             note: one shape dropped",
    ]


def test_a_part_without_rows_is_its_line():
    assert part(rows=[], status="skipped").lines() == "matmul       skipped      2s  matrix products\n"


def test_markdown_has_a_table_and_the_facts():
    text = Report({"device": "NVIDIA H100", "date": "2026-11-23T01:02:03Z"}, [part()], is_complete=True).markdown()
    assert text.startswith("### NVIDIA H100, 2026-11-23\n\nok: 1 part.\n")
    assert "| device | NVIDIA H100 |" in text
    assert "| dtype | TFLOP/s | % of peak |\n|---|---:|---:|\n| bf16 | 12346 | 43.2 |\n" in text


@pytest.mark.parametrize(
    ("parts", "complete", "verdict", "ok"),
    [
        ([part()], True, "ok: 1 part", True),
        ([part(), part("partial")], True, "ok: 2 parts (matmul partial)", True),
        ([part("dropped")], True, "ok: 0 parts (matmul dropped)", True),
        ([part("failed")], True, "failed: matmul", False),
        ([part("wrong", wrong=["bf16 differs"])], True, "WRONG: matmul: bf16 differs", False),
        ([part()], False, "not complete", False),
        ([part("running")], False, "failed: matmul", False),
    ],
)
def test_the_verdict_names_what_is_missing(parts, complete, verdict, ok):
    report = Report({"device": "x"}, parts, is_complete=complete)
    assert report.verdict() == verdict
    assert json.loads(report.json())["ok"] is ok


def test_the_json_has_what_the_table_does_not_show():
    found = json.loads(Report({"device": "x"}, [part()], is_complete=True).json())
    assert found["parts"]["matmul"]["rows"][0] == {"dtype": "bf16", "rate": 12345.6, "share": 0.4321, "hidden": 7}


def test_cells():
    cells = [(None, "-"), (True, "yes"), (7, "7"), (0.00012345, "0.0001234"), ("x", "x"), (1234.56, "1235")]
    assert [shown(value) for value, _ in cells] == [text for _, text in cells]
    assert shown(0.5, "% MFU") == "50.0"
