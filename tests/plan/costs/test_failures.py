"""Closed formulas of failures against runs that are played through, failure by failure."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from megads.errors import ConfigError
from megads.plan.costs.failures import (
    Failures,
    SaveTimes,
    best_interval_s,
    daly_interval_s,
    expected_s,
    run_mtbf_s,
    young_interval_s,
)
from tests.pairs import SEED

PLAYED = 3000


class Played:
    """A run with failures at random moments."""

    def __init__(self, pick: random.Random, saves: SaveTimes, failures: Failures):
        self.pick, self.saves, self.failures = pick, saves, failures
        self.now, self.failed, self.next_failure = 0.0, 0, pick.expovariate(1 / failures.mtbf_s)

    def passes(self, seconds: float) -> bool:
        """Let so many seconds pass, or end at the next failure."""
        if self.now + seconds < self.next_failure:
            self.now += seconds
            return True
        self.now, self.failed = self.next_failure, self.failed + 1
        self.next_failure += self.pick.expovariate(1 / self.failures.mtbf_s)
        return False

    def restart(self) -> None:
        while not self.passes(self.failures.restart_s):
            pass

    def run(self, work_s: float, interval_s: float, start_s: float) -> tuple[float, int]:
        """Return the seconds to the last complete checkpoint, and the failures."""
        ends = [min(work_s, interval_s * (each + 1)) for each in range(math.ceil(work_s / interval_s))]
        if not self.passes(start_s):
            self.restart()
        safe = done = 0  # intervals in complete checkpoints, and computed
        written_at = math.inf  # when the checkpoint that is being written is complete
        while safe < len(ends):
            computes = ends[done] - (ends[done - 1] if done else 0.0)
            if not self.passes(computes) or not self.is_written(written_at) or not self.passes(self.saves.pause_s):
                safe = done if written_at <= self.now else safe
                done, written_at = safe, math.inf
                self.restart()
                continue
            safe, done = done, done + 1
            written_at = self.now + self.saves.lag_s
            if done == len(ends):
                safe = done if self.passes(self.saves.lag_s) else safe
                if safe < done:
                    done, written_at = safe, math.inf
                    self.restart()
        return self.now, self.failed

    def is_written(self, at: float) -> bool:
        return at == math.inf or at <= self.now or self.passes(at - self.now)


@pytest.mark.parametrize("lag", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("mtbf", [0.8, 3.0, 30.0])
def test_the_expected_time_is_that_of_runs_played_through(mtbf: float, lag: float):
    """In units of the time between saves; a failure rate that is five standard errors off would not pass."""
    pick = random.Random(f"{SEED} {mtbf} {lag}")
    saves, failures = SaveTimes(pick.uniform(0.01, 0.3), lag), Failures(mtbf, pick.uniform(0.05, 0.5))
    for work in (0.7, 1.0, pick.uniform(3, 7)):
        start = pick.uniform(0, 0.5)
        found = [Played(pick, saves, failures).run(work, 1.0, start) for _ in range(PLAYED)]
        times = [seconds for seconds, _ in found]
        expected = expected_s(work, 1.0, start, saves, failures)
        error = statistics.stdev(times) / math.sqrt(PLAYED)
        assert abs(statistics.mean(times) - expected) < 5 * error, (work, saves, failures)
        assert error < 0.1 * expected  # so that the comparison says something
        counts = [count for _, count in found]
        spread = statistics.stdev(counts) / math.sqrt(PLAYED)
        assert abs(statistics.mean(counts) - expected / mtbf) < 5 * spread


def test_without_failures_times_add_up():
    saves = SaveTimes(3.0, 7.0)
    assert expected_s(100, 25, 60, saves, Failures()) == 60 + 100 + 4 * 3 + 7
    assert expected_s(101, 25, 60, saves, Failures()) == 60 + 101 + 5 * 3 + 6 + 7  # the last one waits for the fourth
    assert expected_s(100, math.inf, 60, saves, Failures()) == 60 + 100 + 3 + 7
    rare = expected_s(100, 25, 60, saves, Failures(1e15, 60))
    assert rare == pytest.approx(179, abs=1e-9)


def test_rare_failures_cost_half_an_interval_and_a_restart():
    """The first order that Young's formula comes from."""
    work, interval, save, mtbf, restart = 1e6, 1e3, 10.0, 1e7, 300.0
    lost = expected_s(work, interval, 0, SaveTimes(save), Failures(mtbf, restart)) - work - work / interval * save
    assert lost == pytest.approx(work / mtbf * (interval / 2 + restart), rel=0.03)


@pytest.mark.parametrize("share", [1e-6, 1e-3, 0.05, 0.4, 1.5, 5.0])
def test_the_best_interval_is_the_best(share: float):
    mtbf, save = 10_000.0, 10_000.0 * share

    def cost(interval: float) -> float:
        return math.expm1((interval + save) / mtbf) / interval

    best = best_interval_s(save, mtbf)
    assert all(cost(best) < cost(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 1.9))
    assert cost(daly_interval_s(save, mtbf)) < 1.005 * cost(best) or share > 1
    assert best < young_interval_s(save, mtbf)
    if share <= 1e-3:
        assert young_interval_s(save, mtbf) == pytest.approx(best, rel=0.03)


def test_known_values():
    """A save of 60 s on a run that fails every six hours: Young 1610 s."""
    assert young_interval_s(60, 6 * 3600) == pytest.approx(1609.97, abs=0.01)
    assert daly_interval_s(60, 6 * 3600) == pytest.approx(1570.2, abs=0.1)
    assert best_interval_s(60, 6 * 3600) == pytest.approx(1570.2, abs=0.5)
    assert daly_interval_s(600, 300) == 300
    assert best_interval_s(60, math.inf) == math.inf
    assert run_mtbf_s(50_000, 1000) == 180_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Failures(0, 1), "failures every 0 s"),
        (lambda: Failures(math.nan, 1), "failures every nan s"),
        (lambda: Failures(1, -1), "restarts of -1 s"),
        (lambda: SaveTimes(-1), "pause for -1 s"),
        (lambda: expected_s(0, 1, 0, SaveTimes(0), Failures()), "0 s of work"),
        (lambda: expected_s(1000, 500, 0, SaveTimes(5), Failures(10, 1)), "it would not end"),
        (lambda: expected_s(1000, 1, 0, SaveTimes(0), Failures(10, 1000)), "it would not end"),
    ],
)
def test_impossible_numbers_are_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
