"""Rows reach everybody; whoever fails is reported once and skipped."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from megads.monitor.metrics import MetricsFile, read_metrics
from megads.monitor.trackers.metrics_sink import BackgroundWorker, MetricsSink
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


def test_a_tracker_may_count_steps_of_its_own(tmp_path):
    own, told = Kept(every=3), Kept()
    tracks = MetricsSink(MetricsFile(tmp_path / "metrics.jsonl"), [own, told])
    assert [i for i in range(1, 8) if tracks.wants(i)] == [3, 6]
    for i in range(1, 8):
        tracks.write(step(i), reported=i % 2 == 0)
    tracks.write({"iteration": 7, "valid_loss": 1.0})
    tracks.close()
    assert [row["iteration"] for row in own.rows] == [3, 6, 7]
    assert [row["iteration"] for row in told.rows] == [2, 4, 6, 7]
    assert read_metrics(tmp_path / "metrics.jsonl") == told.rows


def test_what_the_background_raises_keeps_no_row_back(tmp_path):
    tracks = MetricsSink(MetricsFile(tmp_path / "metrics.jsonl"))
    tracks.background.soon(lambda: tracks.write(step(1)))
    tracks.background.soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tracks.close()
    assert tracks.file.file.closed
    assert read_metrics(tmp_path / "metrics.jsonl") == [step(1)]


def test_calls_are_made_in_order_and_on_one_other_thread():
    worker, done = BackgroundWorker(), []
    for number in range(100):
        worker.soon(lambda number=number: done.append((number, threading.current_thread())))
    assert worker.settle()
    assert [number for number, _ in done] == list(range(100))
    (thread,) = {thread for _, thread in done}
    assert thread is not threading.current_thread()


def test_nothing_given_is_nothing_to_wait_for():
    assert BackgroundWorker().settle()


def test_who_waits_gives_up_after_a_while():
    worker, resume_from_saved = BackgroundWorker(), threading.Event()
    worker.soon(resume_from_saved.wait)
    assert not worker.settle(0.01)
    resume_from_saved.set()
    assert worker.settle()


@pytest.mark.parametrize("call", [BackgroundWorker.settle, lambda worker: worker.soon(list)])
def test_what_a_call_raises_comes_back_once(call):
    worker = BackgroundWorker()
    goes_on, after = threading.Event(), threading.Event()

    def fail():
        assert goes_on.wait(60)  # until the call after it is given: that one would raise what this one does
        raise ValueError("a bug")

    worker.soon(fail)
    worker.soon(after.set)
    goes_on.set()
    assert after.wait(60)
    with pytest.raises(ValueError, match="a bug"):
        call(worker)
    assert worker.settle()


def test_the_training_waits_for_a_worker_that_is_far_behind():
    worker, resume_from_saved, done = BackgroundWorker(3), threading.Event(), []
    worker.soon(resume_from_saved.wait)
    threading.Timer(0.05, resume_from_saved.set).start()
    for number in range(10):
        worker.soon(lambda number=number: done.append(number))
    assert resume_from_saved.is_set()
    assert worker.settle()
    assert done == list(range(10))
