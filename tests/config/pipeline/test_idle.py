"""The closed formulas of a pipeline's idle time equal the simulated clock's, exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from megads.config.pipeline.actions import SCHEDULES, actions
from megads.config.pipeline.clock import Costs, simulate
from megads.config.pipeline.idle import idle_share, idle_time
from tests.pairs import SEED


def _drawn(schedule: str) -> list[tuple[int, int, int, Costs]]:
    pick = random.Random(f"{SEED} {schedule}")
    found = []
    for _ in range(60):
        chunks = pick.randint(2, 5) if schedule == "interleaved" else 1
        costs = Costs(*(Fraction(pick.randint(1, 12), pick.randint(1, 5)) for _ in range(3)))
        found.append((pick.randint(1, 9), chunks, pick.randint(1, 27), costs))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_formulas_equal_the_clock(schedule):
    for stages, chunks, micro_batches, costs in _drawn(schedule):
        timeline = simulate(actions(schedule, stages, chunks, micro_batches), costs)
        sizes = (schedule, stages, chunks, micro_batches, costs)
        for stage in range(stages):
            assert timeline.length - timeline.busy(stage) == idle_time(*sizes), sizes
            assert timeline.idle_share(stage) == idle_share(*sizes), sizes


def test_the_papers_formulas():
    """arXiv 2104.04473: (p - 1) / m of the ideal time, a v-th of it interleaved; 2401.10241: (p - 1) (F + B - W)."""
    costs = Costs(Fraction(1), Fraction(1), Fraction(1))
    ideal = 8 * 3
    assert idle_time("1f1b", 4, 1, 8, costs) / ideal == Fraction(3, 8)
    assert idle_time("interleaved", 4, 2, 8, costs) / (2 * ideal) == Fraction(3, 8) / 2
    assert idle_time("zb-h1", 4, 1, 8, Costs(5, 4, 3)) == 3 * (5 + 4 - 3)
    assert idle_share("1f1b", 4, 1, 8) == pytest.approx(3 / 11)
    assert idle_share("1f1b", 1, 1, 8) == 0
