"""What the steps of a run spend their time on, and which ranks hold the others up."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.device.timeline import Timeline
from megads.timing.step_times import SAVE, Shares, StepTimes, step_clock
from megads.timing.stragglers import Found, find_stragglers


class Timing:
    """Takes the times of the steps of one run on this rank.

    Args:
        run: derived settings.
        groups: of this rank.
        device: that computes.
        timeline: makes the marks in its time.
    """

    def __init__(
        self, run: RunConfig, groups: Groups, device: torch.device, timeline: Callable[[torch.device], Timeline]
    ):
        settings = run.times
        self.clock = step_clock(timeline(device)) if settings.split else None
        self.shares = Shares()  # of the steps since this start
        self.saved_s = 0.0  # since the last step
        looks = settings.split and settings.straggler_interval and groups.world is not None
        self.look_out = LookOut(run, groups, device) if looks else None

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Return what the engine's part of a step runs in."""
        return self.clock.running() if self.clock is not None else contextlib.nullcontext()

    def wait(self) -> None:
        """Wait until all of the step is done, so that its time is all of it."""
        if self.clock is not None:
            self.clock.wait()

    def step_done(self, took_s: float, waited_s: float) -> dict[str, float]:
        """Take note of a step whose result has been read.

        Args:
            took_s: by the step, its data included.
            waited_s: for data.

        Returns:
            The entries of its metrics row; of a run that does not tell them none.
        """
        if self.clock is None:
            return {}
        times = self.clock.read(took_s, waited_s)
        self.shares.add(times.seconds)
        if self.look_out is not None:
            self.look_out.add(times)
        saved, self.saved_s = self.saved_s, 0.0
        return {**times.row(), f"time/{SAVE}_s": saved}

    def look(self, iteration: int) -> Found | None:
        """Return which ranks stand out, on rank 0 and after steps where it is looked for. Collective."""
        return self.look_out.look(iteration) if self.look_out is not None else None

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Count the block as the run standing still for a save."""
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.saved_s += took
            if self.clock is not None:
                self.shares.add({SAVE: took})


class LookOut:
    """Compares the ranks' own work, every ``times.straggler_interval`` steps, by one all-reduce of a float a rank.

    Of a rank counts the median of its steps since the last look, so that one slow step, such
    as the first one, makes no straggler.

    Args:
        run: derived settings.
        groups: of two ranks or more.
        device: of what the ranks exchange.
    """

    def __init__(self, run: RunConfig, groups: Groups, device: torch.device):
        self.groups, self.device = groups, device
        self.interval, self.ratio = run.times.straggler_interval, run.times.straggler_ratio
        self.kinds = kinds_of(run, groups) if groups.rank == 0 else []
        self.busy_s: list[float] = []

    def add(self, times: StepTimes) -> None:
        """Take note of a step."""
        self.busy_s.append(times.busy_s)

    def look(self, iteration: int) -> Found | None:
        """Return what all ranks' times show, on rank 0 and after steps where it is time. Collective."""
        if iteration % self.interval or not self.busy_s:
            return None
        # A sum with zeros is exact, uses the connections there are, and takes the logarithm of
        # the ranks; a gather would connect rank 0 to every other one.
        everyone = torch.zeros(self.groups.grid.world_size, device=self.device)
        everyone[self.groups.rank] = statistics.median(self.busy_s)
        self.busy_s = []
        dist.all_reduce(everyone, group=self.groups.world)
        if self.groups.rank != 0:
            return None
        return find_stragglers(everyone.tolist(), self.kinds, self.ratio)


def kinds_of(run: RunConfig, groups: Groups) -> list[int]:
    """Return a number for every rank; ranks of one number do the same work.

    Stages of a pipeline hold different layers. Sequence-parallel ranks differ where the heads
    cannot be cut evenly among them.
    """
    heads = run.model.num_heads // groups.tensor_size
    uneven = heads % groups.seq_size != 0
    places = (groups.grid.coordinate(rank) for rank in range(groups.grid.world_size))
    return [place["pipe"] * groups.seq_size + (place["seq"] if uneven else 0) for place in places]
