"""The order of a benchmark, its exit code, and what stays of one that is ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megads.bench import run as module
from megads.bench.parts import Part
from megads.bench.results import PartResult, Report
from megads.bench.run import Deadline, Wish, run_bench
from megads.bench.session import MeasurementFailed
from megads.cluster.ranks import RankInfo
from tests.bench.made import bench_of


class Kept:
    def __init__(self) -> None:
        self.parts: list[PartResult] = []
        self.reports: list[str] = []

    def begin(self, report: Report) -> None:
        pass

    def progress(self, text: str, done: float) -> None:
        assert 0 <= done <= 1

    def part(self, result: PartResult) -> None:
        self.parts.append(result)

    def keep(self, report: Report) -> None:
        self.reports.append(report.json())


def a_part(name: str, measure: Any) -> Part:
    return Part(name, name, 1, measure, {"x": "x"})


def good(bench: Any, result: PartResult) -> None:
    bench.notify("one")
    result.rows.append({"x": 1})


def last(bench: Any, result: PartResult) -> None:
    result.rows.append({"x": 3})


def wrong(bench: Any, result: PartResult) -> None:
    result.wrong.append("2 is not 3")


def fails(bench: Any, result: PartResult) -> None:
    result.rows.append({"x": 2})
    raise MeasurementFailed("out of memory")


def breaks(bench: Any, result: PartResult) -> None:
    raise RuntimeError("driver error\nmore")


@pytest.fixture
def run_parts(monkeypatch):
    def run(*measures: Any, total_s: float = 600.0) -> tuple[int, Kept]:
        monkeypatch.setattr(module, "join", lambda wish, info, env: bench)
        parts = tuple(a_part(each.__name__, each) for each in measures)
        bench = bench_of(total_s=total_s)
        bench.budget._weights = {part.name: 1.0 for part in parts}
        kept = Kept()
        wish = Wish(parts, 600.0, Path())
        info: Any = RankInfo(0, 1, 0, 1, "")
        return run_bench(wish, info, {}, kept), kept

    return run


def test_parts_run_in_order_and_are_kept_one_by_one(run_parts):
    code, kept = run_parts(good, fails, last)
    statuses = [(part.name, part.status) for part in kept.parts]
    assert statuses == [("good", "done"), ("fails", "failed"), ("last", "done")]
    assert kept.parts[1].rows == [{"x": 2}]
    assert kept.parts[1].notes == ["out of memory"]
    assert len(kept.reports) == 4
    assert code == 1


@pytest.mark.parametrize(("measure", "status", "code"), [(good, "done", 0), (wrong, "wrong", 1), (breaks, "failed", 1)])
def test_the_exit_code_says_whether_numbers_are_right(run_parts, measure, status, code):
    found, kept = run_parts(measure)
    assert (found, kept.parts[0].status) == (code, status)


def test_without_time_parts_are_dropped_with_a_line(run_parts):
    code, kept = run_parts(good, wrong, total_s=0.5)
    assert [part.status for part in kept.parts] == ["dropped", "dropped"]
    assert kept.parts[0].notes == ["no time left; pass --minutes or --parts"]
    assert code == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_at_the_limit_what_there_is_stays(rank):
    ended: list[int] = []
    done, running = (PartResult(name, name, {}, status=status) for name, status in (("a", "done"), ("b", "running")))
    kept = Kept()
    deadline = Deadline(600.0, Report({"device": "x"}, [done, running]), kept, rank, ended.append)
    assert deadline._timer.interval == (600 if rank == 0 else 602)
    deadline._end()
    assert ended == [1]
    assert [part.name for part in kept.parts] == (["b"] if rank == 0 else [])
    if rank == 0:
        assert running.status == "failed"
        assert '"ok": false' in kept.reports[0]


def test_a_deadline_that_is_not_reached_does_nothing():
    ended: list[int] = []
    with Deadline(600.0, Report({}), Kept(), 0, ended.append) as nothing:
        assert nothing is None
    assert ended == []
