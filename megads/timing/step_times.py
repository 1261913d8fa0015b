"""A step's time by what it was spent on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megads.device.timeline import HostTimeline, Timeline
from megads.timing.sections import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, OTHER, run_clock

DATA, SAVE = "data", "save"
PARTS = (DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER)
"""Of a step's time, in the order in which they are reported."""

SHOWN = 0.005  # of all: a smaller part is not told


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step by part; their sum is the step's."""

    seconds: Mapping[str, float]  # of every one of PARTS

    @property
    def busy_s(self) -> float:
        """What this rank needed for its own work, without waiting for others."""
        return sum(self.seconds[part] for part in (DATA, FORWARD, BACKWARD, OPTIMIZER))

    def row(self) -> dict[str, float]:
        """Return the entries of a metrics row."""
        return {f"time/{part}_s": self.seconds[part] for part in PARTS}


class StepClock:
    """Takes the times of the sections of one step after the other (``megads.timing.sections``), by a device's marks.

    Args:
        timeline: of what computes.
    """

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.name = OTHER
        self.marks: list[Any] = []
        self.names: list[str] = []  # what runs from the mark of the same place on

    def switch(self, name: str) -> str:
        """Take note that ``name`` begins now; return what ran until now."""
        before, self.name = self.name, name
        if name != before:
            self.marks.append(self.timeline.mark())
            self.names.append(name)
        return before

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take note of the sections of the block, which is a step without its data."""
        self.begin()
        run_clock(self)
        try:
            yield
        finally:
            run_clock(None)
        self.end()

    def begin(self) -> None:
        """Forget the step before."""
        self.timeline.begin()
        self.name, self.names, self.marks = OTHER, [OTHER], [self.timeline.mark()]

    def end(self) -> None:
        """Take note that the step ends here."""
        self.marks.append(self.timeline.mark())

    def wait(self) -> None:
        """Return when all of the step is done, on the device too: its loss may be known before its update."""
        self.timeline.wait(self.marks[-1])

    def read(self, took_s: float, waited_s: float) -> StepTimes:
        """Return the times of the block, once its result has been read from the device.

        Args:
            took_s: by the host's clock, of the whole step; what no section claims is the rest of it.
            waited_s: for data.
        """
        seconds = self.seconds()
        seconds[DATA] = waited_s
        claimed = sum(seconds.values()) - seconds[OTHER]
        seconds[OTHER] = took_s - claimed
        return StepTimes(seconds)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every one of :data:`PARTS` that was measured."""
        seconds = dict.fromkeys(PARTS, 0.0)
        for name, took in zip(self.names, self.timeline.seconds(self.marks), strict=True):
            seconds[name] += took
        return seconds


class HostClock(StepClock):
    """The same by the host's clock, whose times are known at once and need not be kept."""

    def __init__(self, timeline: HostTimeline):
        super().__init__(timeline)
        self.clock, self.since = timeline.mark, 0.0
        self.parts = dict.fromkeys(PARTS, 0.0)

    def switch(self, name: str) -> str:
        """Take note that ``name`` begins now; return what ran until now."""
        before = self.name
        if name != before:
            now = self.clock()
            self.parts[before] += now - self.since
            self.name, self.since = name, now
        return before

    def begin(self) -> None:
        """Forget the step before."""
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.name, self.since = OTHER, self.clock()

    def end(self) -> None:
        """Take note that the step ends here."""
        self.parts[self.name] += self.clock() - self.since

    def wait(self) -> None:
        """Do nothing: all is done when its call returns."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every one of :data:`PARTS` that was measured."""
        return dict(self.parts)


def step_clock(timeline: Timeline) -> StepClock:
    """Return the clock for a timeline."""
    return HostClock(timeline) if isinstance(timeline, HostTimeline) else StepClock(timeline)


class Shares:
    """What the time of a run's steps, and of the saves between them, was spent on."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*PARTS, SAVE), 0.0)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count a step, or a save."""
        for part, took in seconds.items():
            self.seconds[part] += took

    def line(self) -> str:
        """Return ``forward 31%, backward 52%, ...``; empty where nothing was counted."""
        total = sum(self.seconds.values())
        if total <= 0:
            return ""
        shares = {part: self.seconds[part] / total for part in (*PARTS[1:-1], DATA, SAVE, OTHER)}
        return ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= SHOWN)
