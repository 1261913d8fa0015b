"""The memory that is planned, against 451 published rows."""

from __future__ import annotations

import pytest

from benchmarks.planner.memory import Result, by_suite, left_out, reserve_of, results, rows, summary, unsafe


@pytest.fixture(scope="module")
def found() -> list[Result]:
    return results()


@pytest.fixture(scope="module")
def described(found) -> list[Result]:
    """Rows that say all that their memory depends on."""
    return [each for each in found if not each.unknown]


def test_static_memory_of_all_rows(found):
    assert len(found) == len(rows()) == 451
    assert summary(found).static_right >= 0.95


def test_peak_memory(described):
    assert len(described) >= 430
    errors = summary(described)
    assert errors.static_right >= 0.97
    assert errors.peak_mean <= 0.05
    assert errors.peak_p95 <= 0.12


@pytest.mark.parametrize("suite", ["gpt", "bert", "t5", "hybrid", "moe"])
def test_every_suite(suite, described):
    """Nothing was fitted to any of them; models with experts assume that tokens go to experts evenly."""
    errors = summary(by_suite(described)[suite])
    assert errors.peak_mean <= (0.1 if suite == "moe" else 0.04)
    assert errors.static_right >= (0.85 if suite == "moe" else 0.99)


@pytest.mark.parametrize("column", ["suite", "platform"])
def test_a_reserve_fitted_elsewhere_is_enough_on_devices_that_are_sold(column, described):
    """No row is said to fit a device of 8 GiB or more that has less than it needed."""
    for reserve, wrong, _ in left_out(described, lambda each: str(each.facts[column])).values():
        assert reserve <= 0.12
        assert wrong == 0


def test_a_reserve_that_is_none_lets_rows_through_that_do_not_fit(described):
    assert 0 < reserve_of(described) <= 0.1
    assert unsafe(described, -0.5)
