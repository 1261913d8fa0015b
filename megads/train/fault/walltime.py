"""Leaving in time: when the allocation ends, and how long it takes to be gone by then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from megads.config.estimate.memory import count_parameters
from megads.config.optimizers import OPTIMIZERS
from megads.config.run_folder import ENDS_AT
from megads.config.schema import RunConfig
from megads.text.units import clock, duration, steady_clock

TEARDOWN_S = 10.0  # to end processes and write the summary
TEARDOWN_PER_RANK_S = 0.005
SAVES = 2.0  # times that the longest save so far must fit in
WRITER_BYTES_PER_S = 100e6  # a low guess for one rank of many, used until a save was measured
RECENT = 5  # steps; the slow first one is forgotten
BACKWARD = 3.0  # times the forward pass of as many samples: a training step, at least
FIRST_SHARE = 0.25  # of the time left: more is not kept free for a first step of which only the set-up is known


@dataclass
class Deadline:
    """When rank 0 must have its run stop, by its own clock and from what it measured.

    Args:
        ends_at: unix seconds of the end of the allocation; 0: not known, never near.
        save_s: seconds of a save, measured in an earlier start or guessed.
        teardown_s: seconds from the last save to the end of the last process.
        now: the clock; a wall clock that is changed does not move it.
    """

    ends_at: float
    save_s: float
    teardown_s: float = TEARDOWN_S
    now: Callable[[], float] = field(default_factory=steady_clock)
    valid_s: float = 0.0
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    measured_save_s: float = 0.0  # in this start
    is_writing: bool = False  # a save in the background, which is completed before the last one begins
    set_up_s: float = 0.0  # of this start: first steps compile, allocate and connect as the set-up does
    step_s: float = 0.0  # a step of an earlier start, or as a validation lets expect

    @staticmethod
    def of(run: RunConfig, env: Mapping[str, str], world_size: int, save_s: float) -> Deadline:
        """Return the deadline of a run.

        Args:
            run: its settings.
            env: has ``MEGADS_ENDS_AT`` when the launcher knows the end.
            world_size: ranks.
            save_s: the longest save that an earlier start of the run measured, 0: none.
        """
        # A weight and the optimizer's state in four bytes a number, of which every rank writes its share.
        state = OPTIMIZERS[run.optim.optimizer].numbers if run.checkpoint.save_optim else 0
        size = 4 * (1 + state) * count_parameters(run.model)
        guess = 2.0 + size / world_size / WRITER_BYTES_PER_S
        return Deadline(float(env.get(ENDS_AT) or 0.0), save_s or guess, TEARDOWN_S + TEARDOWN_PER_RANK_S * world_size)

    def saved(self, seconds: float) -> None:
        """Note how long a save took, or would have if the run had waited for it; the first one replaces the guess."""
        self.measured_save_s = self.save_s = max(seconds, self.measured_save_s)

    def validated(self, seconds: float, batches: int = 0) -> None:
        """Note how long a validation of so many global batches took."""
        self.valid_s = max(self.valid_s, seconds)
        if batches:
            self.step_s = max(self.step_s, BACKWARD * seconds / batches)

    def next_step_s(self) -> float:
        """Return how long the next step may take: the longest recent one, before the first what else is known."""
        if self.steps:
            return max(self.steps)
        return max(self.step_s, min(self.set_up_s, FIRST_SHARE * max(0.0, self.ends_at - self.now())))

    def needs_s(self, *, step: bool, validation: bool) -> float:
        """Return the seconds from now to the end of the last process, if the run continued with what is named."""
        more = self.next_step_s() if step else 0.0
        more += self.save_s if self.is_writing else 0.0
        return SAVES * self.save_s + self.teardown_s + more + (self.valid_s if validation else 0.0)

    def is_near(self, *, step: bool, validation: bool) -> bool:
        """Return whether the run must stop now, since it could not after what is named."""
        return bool(self.ends_at) and self.now() + self.needs_s(step=step, validation=validation) >= self.ends_at

    def why(self) -> str:
        """Return the reason to stop, as ``the allocation ends at 18:00``."""
        return f"the allocation ends at {clock(self.ends_at, self.now())}"

    def forecast(self, left_s: float, steps_left: int) -> str:
        """Return whether the planned iterations fit, in one line.

        Args:
            left_s: seconds that the remaining steps need at the present speed.
            steps_left: how many they are.
        """
        usable = self.ends_at - self.now() - self.needs_s(step=False, validation=False)
        text = f"{steps_left} iterations left need about {duration(left_s)}; {self.why()}"
        if left_s <= usable:
            return f"{text}: they fit"
        fit = max(0, int(usable / left_s * steps_left))
        return f"{text}: about {fit} fit, then the run saves and exits with 75; rerun the same command to resume"
