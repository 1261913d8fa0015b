"""When a run must stop: asked from outside, on any rank; or in time, before its allocation ends.

What ranks have to agree on after every step travels in one all-reduce of two numbers: whether
to stop, and how far a save in the background is.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from megads.checkpoint.save import WRITING
from megads.comm.groups import Groups
from megads.config.optimizers import OPTIMIZERS
from megads.config.run_files import METRICS
from megads.config.run_folder import ENDS_AT, STOP
from megads.config.schema import RunConfig
from megads.monitor.run_state.interrupt import report_stopping, was_ctrl_c_pressed
from megads.monitor.run_state.runs import last_rows
from megads.plan.memory import count_trained
from megads.text.units import clock, duration, steady_clock

CONTINUE, ASKED, LONG_ENOUGH, OUT_OF_TIME = 0, 1, 2, 3

ECHO_S = 1.0
"""MPICH sends Ctrl-C to a rank and to its guard, which hands it on: a SIGINT this soon after the first is the same."""
TEARDOWN_S = 10.0  # to end processes and write the summary
TEARDOWN_PER_RANK_S = 0.005
SAVES = 2.0  # times that the save to expect must fit in
WRITER_BYTES_PER_S = 100e6  # a low guess for one rank of many, used until a save was measured
RECENT = 5  # steps; the slow first one is forgotten
BACKWARD = 3.0  # times the forward pass of as many samples: a training step, at least
FIRST_SHARE = 0.25  # of the time left: more is not kept free for a first step when only the set-up is known


class StopRequest:
    """Collects stop requests: signals to this rank, the control file in the run folder, the end of the allocation.

    SIGUSR1 is the request on every launcher, and SIGTERM too, which a scheduler sends to
    every process of a job at its end. A rank that nobody launches for (it runs in place)
    also takes SIGINT and SIGHUP for one; a second SIGINT then ends it at once.

    Args:
        run_dir: whose file ``stop`` is a request; read by rank 0 only.
        groups: all ranks agree over the world.
        device: of the flag the ranks exchange.
        in_place: whether this process is the one the user's terminal talks to.
        deadline: of the allocation, by rank 0's clock; None: the end is not known.
        exit_duration_min: minutes from now, by rank 0's clock, after which the run stops; 0: never.
    """

    def __init__(
        self,
        run_dir: Path,
        groups: Groups,
        device: torch.device,
        *,
        in_place: bool,
        deadline: Deadline | None = None,
        exit_duration_min: float = 0.0,
    ):
        self.file = run_dir / STOP
        self.groups = groups
        self.deadline = deadline or Deadline(0.0, 0.0)
        self.exit_duration_min = exit_duration_min
        self.exit_at = time.monotonic() + 60 * exit_duration_min
        self.saving: Callable[[], int] = int  # this rank's state of a save; 0 unless it is replaced
        self.saves = 0  # the highest state on any rank when they last agreed
        self.flag = torch.zeros(2, dtype=torch.int32, device=device)
        self.is_asked = in_place and was_ctrl_c_pressed()  # during the set-up
        self.in_place = in_place
        self.interrupted_at = 0.0  # by the first SIGINT
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        # A launcher holds the signal back until somebody listens.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        if in_place:
            signal.signal(signal.SIGINT, signal.default_int_handler if self.is_asked else self._on_signal)
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
                signal.signal(signal.SIGHUP, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.in_place and self.groups.rank == 0 and not self.is_asked:
            report_stopping(again=number == signal.SIGINT)
        self.is_asked = True
        if number != signal.SIGINT:
            return
        if not self.interrupted_at:
            self.interrupted_at = time.monotonic()
        elif time.monotonic() - self.interrupted_at > ECHO_S:
            raise KeyboardInterrupt

    def agreed(self, *, step: bool = True, validation: bool = False, save: bool = False) -> str:
        """Return why to stop now, the same on every rank; empty: continue. Collective.

        Args:
            step: whether the next question comes only after another step.
            validation: whether it comes only after another validation.
            save: whether a save in the background begins before it comes.
        """
        reason, saves = ASKED if self.is_asked else CONTINUE, self.saving()
        if saves == WRITING:
            self.deadline.still_writes()
        if self.groups.rank == 0:
            # One clock decides: ranks whose clocks differ would else leave at different steps.
            # A file system that has a bad moment is no reason to end (os.path.exists raises nothing).
            reason = max(reason, ASKED if os.path.exists(self.file) else CONTINUE)
            reason = LONG_ENOUGH if self.exit_duration_min and time.monotonic() >= self.exit_at else reason
            reason = OUT_OF_TIME if self.deadline.is_near(step=step, validation=validation, save=save) else reason
        if self.groups.grid.world_size > 1:
            self.flag.copy_(torch.tensor([reason, saves], dtype=torch.int32))
            dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
            reason, saves = self.flag.tolist()
            if saves == WRITING:
                self.deadline.still_writes()
        self.saves = saves
        return self._why(reason)

    def _why(self, reason: int) -> str:
        if reason == OUT_OF_TIME:
            return self.deadline.why()
        longest = f"EXIT_DURATION_IN_MINS={self.exit_duration_min:g}"
        return {CONTINUE: "", ASKED: "asked to stop", LONG_ENOUGH: longest}[reason]


@dataclass
class Deadline:
    """When rank 0 must have its run stop, by its own clock and from what it measured."""

    ends_at: float  # unix seconds of the end of the allocation; 0: not known, never near
    save_s: float  # seconds of a save, measured in an earlier start or guessed
    teardown_s: float = TEARDOWN_S  # from the last save to the end of the last process
    now: Callable[[], float] = field(default_factory=steady_clock)  # does not move when the wall clock is changed
    valid_s: float = 0.0
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    measured_save_s: float = 0.0  # in this start
    last_save_s: float = 0.0  # in this start
    growth_s: float = 0.0  # by which the last save was longer than the one before, if it was the longest
    is_writing: bool = False  # a save in the background, which is completed before the last one begins
    writing_since: float = 0.0
    written_s: float = 0.0  # for which it was seen to be written
    set_up_s: float = 0.0  # of this start: first steps compile, allocate and connect as the set-up does
    step_s: float = 0.0  # a step of an earlier start, or as a validation lets expect

    @staticmethod
    def of(run: RunConfig, env: Mapping[str, str], world_size: int, save_s: float) -> Deadline:
        """Return the deadline of a run.

        ``env`` has ``MEGADS_ENDS_AT`` when the launcher knows the end; ``save_s`` is the longest save that an earlier
        start of the run measured, 0: none.
        """
        # A weight and the optimizer's state in four bytes per element; every rank writes its share.
        state = OPTIMIZERS[run.optim.optimizer].floats if run.checkpoint.save_optim else 0
        size = 4 * (1 + state) * count_trained(run.model)
        guess = 2.0 + size / world_size / WRITER_BYTES_PER_S
        return Deadline(float(env.get(ENDS_AT) or 0.0), save_s or guess, TEARDOWN_S + TEARDOWN_PER_RANK_S * world_size)

    def saved(self, seconds: float) -> None:
        """Note how long a save took, or would have if the run had waited for it; the first one replaces the guess."""
        self.growth_s = 0.0
        if self.last_save_s and seconds > self.measured_save_s:
            self.growth_s = seconds - self.last_save_s
        self.last_save_s = seconds
        self.measured_save_s = self.save_s = max(seconds, self.measured_save_s)

    def begins_to_write(self) -> None:
        """Note that a save in the background begins."""
        self.is_writing, self.writing_since, self.written_s = True, self.now(), 0.0

    def still_writes(self) -> None:
        """Note that a rank is writing the save in the background now."""
        if self.is_writing:
            self.written_s = self.now() - self.writing_since

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

    def needs_s(self, *, step: bool, validation: bool, save: bool = False) -> float:
        """Return the seconds from now to the end of the last process, if the run continued with what is named."""
        more = self.next_step_s() if step else 0.0
        more += self.valid_s if validation else 0.0
        # The save that is being written may be longer already than any before it. Each one after it is longer again.
        expected = max(self.save_s + self.growth_s, self.written_s if self.is_writing else 0.0)
        for _ in range(self.is_writing + save):
            more += expected
            expected += self.growth_s
        return SAVES * expected + self.teardown_s + more

    def is_near(self, *, step: bool, validation: bool, save: bool = False) -> bool:
        """Return whether the run must stop now, since it could not after what is named."""
        needs = self.needs_s(step=step, validation=validation, save=save)
        return bool(self.ends_at) and self.now() + needs >= self.ends_at

    def why(self) -> str:
        """Return the reason to stop, as ``the allocation ends at 18:00``."""
        return f"the allocation ends at {clock(self.ends_at, self.now())}"

    def forecast(self, left_s: float, steps_left: int) -> str:
        """Return in one line whether the planned iterations fit; the rest needs ``left_s`` at the present speed."""
        usable = self.ends_at - self.now() - self.needs_s(step=False, validation=False)
        text = f"{steps_left} iterations left need about {duration(left_s)}; {self.why()}"
        if left_s <= usable:
            return f"{text}: they fit"
        fit = max(0, int(usable / left_s * steps_left))
        return f"{text}: about {fit} fit, then the run saves and exits with 75; rerun the same command to resume"


def step_time_of(run_dir: Path) -> float:
    """Return the seconds of the last step that the run in ``run_dir`` has a row of, 0 where there is none."""
    with suppress(OSError):
        steps, _ = last_rows(run_dir / METRICS)
        seconds = steps[-1].get("step_time_s") if steps else None
        return float(seconds) if isinstance(seconds, int | float) else 0.0
    return 0.0
