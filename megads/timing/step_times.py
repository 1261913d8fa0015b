"""A step's time by what it was spent on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.device.timeline import Timeline
from megads.timing.sections import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, OTHER, run_clock
from megads.timing.stragglers import Stragglers, StragglerWatch

DATA, SAVE = "data", "save"
PARTS = (DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER)
"""Of a step's time, in the order in which they are reported."""

SHOWN = 0.005  # of all: a smaller part is not shown


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
    """Takes the times of the sections of one step after the other (``megads.timing.sections``), by a device's marks."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.name = OTHER
        self.marks: list[Any] = []
        self.names: list[str] = []  # what runs from the mark of the same place on

    def switch(self, name: str) -> str:
        """Start the section ``name``; return what ran until now."""
        before, self.name = self.name, name
        if name != before:
            self.marks.append(self.timeline.mark())
            self.names.append(name)
        return before

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the sections of the block, which is a step without its data."""
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
        """End the step."""
        self.marks.append(self.timeline.mark())

    def wait(self) -> None:
        """Return when all of the step is done, on the device too: its loss may be known before its update."""
        self.timeline.wait(self.marks[-1])

    def read(self, took_s: float, waited_s: float) -> StepTimes:
        """Return the times of the block, once its result has been read from the device.

        Args:
            took_s: by the host's clock, of the whole step; what no section claims is the rest of it.
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


class Shares(Counter[str]):
    """Seconds of a run's steps, and of the saves between them, by what they were spent on."""

    def line(self) -> str:
        """Return ``forward 31%, backward 52%, ...``; empty where nothing was counted."""
        total = sum(self.values())
        if total <= 0:
            return ""
        shares = {part: self[part] / total for part in (*PARTS[1:-1], DATA, SAVE, OTHER)}
        return ", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= SHOWN)


class Timing:
    """Takes the times of the steps of one run on this rank."""

    def __init__(
        self, run: RunConfig, groups: Groups, device: torch.device, timeline: Callable[[torch.device], Timeline]
    ):
        settings = run.times
        self.clock = StepClock(timeline(device)) if settings.split else None
        self.shares = Shares()  # of the steps since this start
        self.saved_s = 0.0  # since the last step
        self.is_predicted = device.type != "cpu" or bool(settings.anchor)  # or may be; the same on every rank
        looks = settings.split and settings.straggler_interval and groups.world is not None
        self.watch = StragglerWatch(run, groups, device) if looks else None

    def running(self) -> AbstractContextManager[None]:
        """Return what the engine's part of a step runs in."""
        return self.clock.running() if self.clock is not None else nullcontext()

    def wait(self) -> None:
        """Wait until all of the step is done, so that its time is all of it."""
        if self.clock is not None:
            self.clock.wait()

    def step_done(self, took_s: float, waited_s: float) -> dict[str, float]:
        """Count a step whose result has been read.

        Returns:
            The entries of its metrics row; none without ``times.split``.
        """
        if self.clock is None:
            return {}
        times = self.clock.read(took_s, waited_s)
        self.shares.update(times.seconds)
        if self.watch is not None:
            self.watch.add(times.busy_s)
        saved, self.saved_s = self.saved_s, 0.0
        return {**times.row(), f"time/{SAVE}_s": saved}

    def look(self, iteration: int) -> Stragglers | None:
        """Return the stragglers, on rank 0 and after steps with a check. Collective."""
        return self.watch.look(iteration) if self.watch is not None else None

    def compare_ranks(self) -> Stragglers | None:
        """Return what the ranks' times show now, on rank 0, in a run whose steps are predicted. Collective."""
        return self.watch.compare() if self.watch is not None and self.is_predicted else None

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Count the block as a pause for a save."""
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.saved_s += took
            if self.clock is not None:
                self.shares.update({SAVE: took})
