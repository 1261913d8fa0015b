"""Drawn sets of cases in which every two values of different parameters meet, in place of full products.

A bug that needs one value, or two together, shows in such a set as in the product; of three that
must meet it sees some. Which ones, a seed decides: it is part of every test's id, and
``MEGADS_TEST_SEED`` draws another set, or the one of a failure seen elsewhere.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("MEGADS_TEST_SEED") or 1)


def pairs(
    values: Mapping[str, Sequence[Any]], *, allowed: Callable[..., bool] = lambda **_: True, seed: int = SEED
) -> list[dict[str, Any]]:
    """Return cases, a value for every parameter, that hold every two values which some allowed case holds.

    Args:
        values: of each parameter, by name.
        allowed: whether a case, given as keywords, may be drawn.
        seed: of the draw; the same gives the same cases.
    """
    drawn = random.Random(seed)
    names = list(values)
    whole = [dict(zip(names, case, strict=True)) for case in itertools.product(*map(range, map(len, values.values())))]
    whole = [case for case in whole if allowed(**{name: values[name][i] for name, i in case.items()})]
    drawn.shuffle(whole)
    left = {pair for case in whole for pair in _pairs_of(case)}
    chosen = []
    while left:
        best = max(whole, key=lambda case: len(left & _pairs_of(case)))
        left -= _pairs_of(best)
        chosen.append(best)
    return [{name: values[name][i] for name, i in case.items()} for case in sorted(chosen, key=lambda c: [*c.values()])]


def _pairs_of(case: dict[str, int]) -> set[tuple[tuple[str, int], ...]]:
    return set(itertools.combinations(case.items(), 2))


def parametrize_pairs(
    allowed: Callable[..., bool] = lambda **_: True, **values: Sequence[Any] | Mapping[str, Any]
) -> pytest.MarkDecorator:
    """Parametrize a test with a drawn set of cases; a mapping's keys are the words of the ids.

    Args:
        allowed: as in :func:`pairs`, with the values of the parameters.
        values: of each parameter.
    """
    words = {name: [*each] if isinstance(each, Mapping) else [*map(str, each)] for name, each in values.items()}
    plain = {name: [*each.values()] if isinstance(each, Mapping) else [*each] for name, each in values.items()}
    numbers = {name: range(len(each)) for name, each in plain.items()}
    cases = pairs(numbers, allowed=lambda **at: allowed(**{name: plain[name][i] for name, i in at.items()}))
    return pytest.mark.parametrize(
        tuple(values),
        [
            pytest.param(
                *(plain[name][i] for name, i in case.items()),
                id="-".join([*(words[name][i] for name, i in case.items()), f"seed{SEED}"]),
            )
            for case in cases
        ],
    )
