"""Progress on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from megads.data.preprocess import progress
from megads.data.preprocess.progress import Done, Meter


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_work_of_all_processes_adds_up():
    assert Done(1, 2, 3, 4, 5) + Done(10, 20, 30, 40, 50) == Done(11, 22, 33, 44, 55)


def test_a_line_every_ten_seconds_with_the_speed_of_this_run(clock):
    """What an earlier run did counts for the share and for nothing else."""
    stream = io.StringIO()
    meter = Meter(stream, total=4_000_000)
    meter.begin(Done(10, 1_000_000, 500_000, 1_000_000))
    for clock[0], used in ((105.0, 1_500_000), (110.0, 2_000_000), (111.0, 2_100_000)):
        meter.show(Done(20, used, used // 2, used, bad=3))
    assert stream.getvalue() == (" 50.0%  2 MB  0.1 MB/s  0.05 M tokens/s  20 documents  3 bad lines  ETA 0:00:20\n")
    clock[0] = 120.0
    assert meter.summary(Done(30, 3_000_000, 0, 0)) == "3.0 MB in 20.0 s, 0.1 MB/s"


def test_lines_by_documents(clock):
    stream = io.StringIO()
    meter = Meter(stream, total=0, interval=10)
    for clock[0], documents in ((100.0, 0), (100.5, 20), (102.0, 21), (104.0, 25), (106.0, 31)):
        meter.show(Done(documents))
    assert [line.split("  ")[-1] for line in stream.getvalue().splitlines()] == ["21 documents", "31 documents"]


def test_a_terminals_line_is_rewritten_and_removed(clock):
    stream = _Terminal()
    meter = Meter(stream, total=100)
    meter.show(Done())
    clock[0] += 1
    meter.show(Done(1, 1, 1, 50))
    line = stream.getvalue()
    assert line.startswith("\r 50.0%  0 MB")
    meter.clear()
    assert stream.getvalue() == line + "\r" + " " * (len(line) - 1) + "\r"
