"""The benchmark of a plan: what it looks at is bounded, however many ranks there are."""

from __future__ import annotations

from benchmarks.planner.search import CASES, plan
from megads.plan.search.search import MOST_TIMED


def test_the_largest_plan_looks_at_many_candidates_and_times_few():
    preset, device, hosts = CASES[0]
    found, seconds = plan(preset, device, hosts)
    assert found.ask.world_size == 98_304
    assert found.best
    assert found.looked > 50_000
    assert found.timed <= MOST_TIMED
    assert seconds > 0
