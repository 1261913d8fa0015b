"""The time of a benchmark: shares by weight, what is left over passes on, nothing begins that does not end in time."""

from __future__ import annotations

import pytest

from megads.bench.budget import Budget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_a_part_leaves_over_goes_to_the_next():
    clock = Clock()
    budget = Budget(60.0, {"a": 1, "b": 1, "c": 4}, clock)
    assert budget.begin("a") == pytest.approx(10.0)
    clock.now += 4
    assert budget.begin("b") == pytest.approx(56 / 5)
    clock.now += 56
    assert (budget.left(), budget.begin("c")) == (0.0, 0.0)
    assert not budget.allows()


def test_nothing_begins_that_does_not_end_within_the_share():
    clock = Clock()
    budget = Budget(60.0, {"a": 1, "b": 2}, clock)
    budget.begin("a")
    assert budget.allows(19.9)
    assert not budget.allows(20.1)
    clock.now += 20
    assert not budget.allows()
    assert budget.left() == pytest.approx(40)
