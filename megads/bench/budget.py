"""The time that a benchmark may take, and the share of each of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Budget:
    """Seconds for all parts together. What a part leaves over goes to those that follow.

    Args:
        total_s: for everything.
        weights: of every part, in the order in which they run.
        clock: in seconds.
    """

    def __init__(self, total_s: float, weights: Mapping[str, float], clock: Callable[[], float] = time.monotonic):
        self.total_s, self.clock = total_s, clock
        self.started = clock()
        self._weights = dict(weights)  # of the parts that have not begun
        self._part_ends = self.started + total_s

    def begin(self, part: str) -> float:
        """Start the share of ``part``, and return its seconds."""
        weights = sum(self._weights.values())
        share = self.left() * self._weights.pop(part) / weights
        self._part_ends = self.clock() + share
        return share

    def left(self) -> float:
        """Return the seconds that are left for all parts."""
        return max(0.0, self.started + self.total_s - self.clock())

    def allows(self, expected_s: float = 0.0) -> bool:
        """Return whether something that takes ``expected_s`` ends within the share of the part."""
        return self.clock() + expected_s < self._part_ends
