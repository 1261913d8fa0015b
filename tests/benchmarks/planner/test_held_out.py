"""Steps and layouts that no constant was fitted to."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.planner.held_out import predicted_s, rows, sweeps


@pytest.fixture(scope="module")
def pairs():
    return [(row, predicted_s(row)) for row in rows()]


def test_steps_of_another_cluster_are_predicted(pairs):
    errors = [seconds / row.measured - 1 for row, seconds in pairs]
    assert len(errors) > 80
    assert statistics.mean(map(abs, errors)) < 0.1
    assert abs(statistics.mean(errors)) < 0.08


def test_the_first_three_layouts_hold_one_as_fast_as_the_fastest(pairs):
    found = sweeps(pairs)
    assert len(found) >= 8
    for name, layouts in found.items():
        first = sorted(layouts, key=lambda each: each[1])[:3]
        assert min(measured for measured, _ in first) < 1.03 * min(measured for measured, _ in layouts), name
