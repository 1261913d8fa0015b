"""Exchange elements of an array in a given order, thousands at a time.

Swaps that touch elements of their own are done together; the few others one by one, in their
order. So the result is that of the plain loop, which waits for the memory at every step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST = 1 << 14
"""Most swaps that :meth:`Swaps.apply` takes at once."""

_TABLE_BITS = 18


class Swaps:
    """Exchanges elements of one array in the order of a Fisher-Yates shuffle, from its end to its start."""

    def __init__(self, array: npt.NDArray[Any]):
        self.array = array
        self._table = np.zeros(1 << _TABLE_BITS, np.uint32)
        self._numbers = np.arange(LONGEST, dtype=np.uint32)

    def apply(self, top: int, targets: npt.NDArray[np.int64]) -> None:
        """Exchange element ``top - k`` with element ``targets[k]`` (at most ``top - k``) for k = 0, 1, ...

        ``targets`` holds at most :data:`LONGEST` numbers.
        """
        array = self.array
        alone, together = self._sort_out(top, targets)
        places, to = top - alone, targets[alone]
        moved = array[to]
        array[to] = array[places]
        array[places] = moved
        for k, target in zip(together.tolist(), targets[together].tolist(), strict=True):
            array[top - k], array[target] = array[target], array[top - k]

    def _sort_out(
        self, top: int, targets: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the swaps that share no element with another one, and the others; both ascending."""
        count = len(targets)
        numbers = self._numbers[:count]
        # Two targets with the same low bits meet in the table, where the later one wins.
        low = targets & ((1 << _TABLE_BITS) - 1)
        self._table[low] = numbers
        last = self._table[low]
        losers = np.flatnonzero(last != numbers)
        met = np.unique(np.concatenate((losers, last[losers])))
        met = met[np.argsort(targets[met], kind="stable")]
        same = np.diff(targets[met]) == 0
        twice = met[np.concatenate((same, [False])) | np.concatenate(([False], same))] if len(met) else met
        # A target within the block is the place of a later swap.
        inside = np.flatnonzero(targets > top - count)
        together = np.unique(np.concatenate((twice, inside, top - targets[inside]))).astype(np.int64)
        is_alone = np.ones(count, bool)
        is_alone[together] = False
        return np.flatnonzero(is_alone), together
