"""The life of a rank: what watches it."""

from __future__ import annotations

import pytest

from megads.cluster.ranks import RankInfo
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.train.worker import FAILED_WAIT_S, _close_quietly, watchdog
from tests.engine.plain import settings


@pytest.mark.parametrize(("env", "attempt"), [({}, 0), ({"MEGADS_ATTEMPT": ""}, 0), ({"MEGADS_ATTEMPT": "2"}, 2)])
def test_the_watchdog_of_a_rank_knows_its_attempt_and_its_limit(tmp_path, env, attempt):
    run = settings({})
    watch = watchdog(run, tmp_path, RankInfo(3, 4, 1, 2, "test"), env)
    assert (watch.rank, watch.world_size, watch.attempt) == (3, 4, attempt)
    assert watch.timeout_s == run.launch.timeout_s
    assert watch.board.attempt == attempt


def test_metrics_that_cannot_be_closed_do_not_hide_why_a_run_failed(monkeypatch):
    waits = []

    class Sink(MetricsSink):
        def __init__(self) -> None:
            pass

        def close(self, wait_s: float = 0.0) -> None:
            waits.append(wait_s)
            raise OSError(28, "No space left on device")

    _close_quietly(Sink())
    assert waits == [FAILED_WAIT_S]
