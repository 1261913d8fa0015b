"""Packing: every example once, no row too long, as tight as best fit decreasing, and the same for a seed."""

import numpy as np
import pytest

from megads.data.chat.packing import pack


def rooms(lengths, capacity):
    """Return what best fit decreasing leaves of each row, from the definition."""
    left = []
    for size in sorted(lengths, reverse=True):
        fitting = [i for i, room in enumerate(left) if room >= size]
        if fitting:
            left[min(fitting, key=lambda i: left[i])] -= size
        else:
            left.append(capacity - size)
    return sorted(left)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_best_fit_decreasing(seed):
    drawn = np.random.default_rng(seed)
    capacity = int(drawn.integers(1, 60))
    lengths = drawn.integers(1, capacity + 1, drawn.integers(1, 200))
    rows = pack(lengths, capacity, np.random.default_rng(seed))
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert sorted(capacity - int(lengths[row].sum()) for row in rows) == rooms(lengths.tolist(), capacity)
    assert rows == pack(lengths, capacity, np.random.default_rng(seed))


def test_another_seed_joins_other_examples_in_as_many_rows():
    lengths = [5] * 40 + [3] * 40
    found = [pack(lengths, 8, np.random.default_rng(seed)) for seed in (1, 2)]
    assert found[0] != found[1]
    assert [len(rows) for rows in found] == [40, 40]


def test_what_does_not_fit_is_an_error_and_nothing_gives_nothing():
    with pytest.raises(ValueError, match="an example of 9 tokens does not fit a row of 8"):
        pack([1, 9], 8, np.random.default_rng(0))
    assert pack([], 8, np.random.default_rng(0)) == []
