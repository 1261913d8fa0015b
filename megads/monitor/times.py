"""A step's time by what it was spent on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megads.device.timeline import Timeline
from megads.dist.sections import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, OTHER, run_clock

DATA, SAVE = "data", "save"
PARTS = (DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER)
"""Of a step's time, in the order in which they are told."""

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
    """Takes the times of the sections of one step after the other (``megads.dist.sections``).

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
        self.timeline.begin()
        self.name, self.names, self.marks = OTHER, [OTHER], [self.timeline.mark()]
        run_clock(self)
        try:
            yield
        finally:
            run_clock(None)
        self.marks.append(self.timeline.mark())

    def read(self, took_s: float, waited_s: float) -> StepTimes:
        """Return the times of the block, once its result has been read from the device.

        Args:
            took_s: by the host's clock, of the whole step; what no section claims is the rest of it.
            waited_s: for data.
        """
        seconds = dict.fromkeys(PARTS, 0.0)
        seconds[DATA] = waited_s
        for name, took in zip(self.names, self.timeline.seconds(self.marks), strict=True):
            seconds[name] += took
        claimed = sum(seconds.values()) - seconds[OTHER]
        seconds[OTHER] = took_s - claimed
        return StepTimes(seconds)


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
