"""Marks in time, on the host or in the queue of a device.

A device works off its queue while the host runs ahead, so the host's clock tells when work
was ordered, not when it was done. A mark in the queue is an event: the device notes the time
when it comes to it, and nobody waits. Its time can be read once the device has passed it.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable
from typing import Any


class HostTimeline:
    """The host's clock; right where every operation is done when its call returns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.mark = clock

    def begin(self) -> None:
        """Forget the marks there were: nothing to do, a mark is a number."""

    def wait(self, mark: float) -> None:
        """Return when what was ordered before the mark is done: at once."""

    def seconds(self, marks: list[float]) -> list[float]:
        """Return the seconds from each mark to the next."""
        return list(map(operator.sub, marks[1:], marks))


class DeviceTimeline:
    """Events in one queue of a device. They are made once and used again in every step.

    Args:
        make: returns an event that takes the time.
        stream: the queue that computes; work in others shows when this one waits for it.
    """

    def __init__(self, make: Callable[[], Any], stream: Any):
        self.make, self.stream = make, stream
        self.events: list[Any] = []
        self.used = 0
        self.passed: Any = None  # the last event that was waited for

    def begin(self) -> None:
        """Forget the marks there were: every event is free again."""
        self.used, self.passed = 0, None

    def mark(self) -> Any:
        """Return an event, just put into the queue."""
        if self.used == len(self.events):
            self.events.append(self.make())
        event = self.events[self.used]
        self.used += 1
        event.record(self.stream)
        return event

    def wait(self, mark: Any) -> None:
        """Return when the device has passed the event."""
        if mark is not self.passed:
            mark.synchronize()
            self.passed = mark

    def seconds(self, marks: list[Any]) -> list[float]:
        """Return the seconds from each event to the next; waits for the last one, unless that was waited for."""
        self.wait(marks[-1])
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(marks)]


Timeline = HostTimeline | DeviceTimeline
