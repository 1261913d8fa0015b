"""Drawn sets of cases hold every two values that may meet."""

from __future__ import annotations

import itertools

import pytest

from tests.pairs import pairs

VALUES = {"a": [1, 2, 3], "b": "xyz", "c": [True, False], "d": [0, 1]}


def met(cases):
    return {pair for case in cases for pair in itertools.combinations(case.items(), 2)}


@pytest.mark.parametrize("seed", range(5))
def test_every_two_values_meet_in_a_fraction_of_the_product(seed):
    cases = pairs(VALUES, seed=seed)
    product = [dict(zip(VALUES, case, strict=True)) for case in itertools.product(*VALUES.values())]
    assert met(cases) == met(product)
    assert 9 <= len(cases) <= 12 < len(product)
    assert all(case in product for case in cases)


def test_what_is_not_allowed_is_not_drawn_and_nothing_else_is_lost():
    def allowed(a, b, **_):
        return a != 1 or b == "x"

    cases = pairs(VALUES, allowed=allowed)
    product = [dict(zip(VALUES, case, strict=True)) for case in itertools.product(*VALUES.values())]
    assert met(cases) == met([case for case in product if allowed(**case)])
    assert all(allowed(**case) for case in cases)


def test_a_seed_draws_the_same_cases_and_another_seed_others():
    assert pairs(VALUES, seed=3) == pairs(VALUES, seed=3)
    assert pairs(VALUES, seed=3) != pairs(VALUES, seed=4)
