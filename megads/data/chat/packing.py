"""Several examples in one row: best fit decreasing, the same for the same seed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def pack(lengths: Sequence[int] | Numbers, capacity: int, generator: np.random.Generator) -> list[list[int]]:
    """Return rows of numbers of examples: of each row the lengths add up to at most ``capacity``.

    The longest example comes first, and each goes into the row that it fills best. ``generator`` decides between
    equal lengths only, so how many rows there are does not depend on it.
    """
    sizes = np.asarray(lengths, np.int64)
    order = generator.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    rows: list[list[int]] = []
    room: list[int] = []  # sorted: what is left in open rows, each number once
    rows_with: dict[int, list[int]] = defaultdict(list)
    for number in order.tolist():
        size = int(sizes[number])
        if size > capacity:
            raise ValueError(f"an example of {size} tokens does not fit a row of {capacity}")
        at = bisect_left(room, size)
        if at == len(room):
            row, left = len(rows), capacity
            rows.append([])
        else:
            left = room[at]
            row = rows_with[left].pop()
            if not rows_with[left]:
                del room[at]
        rows[row].append(number)
        if left := left - size:
            if not rows_with[left]:
                insort(room, left)
            rows_with[left].append(row)
    return rows
