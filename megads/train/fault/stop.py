"""Asking a run to stop after the current step, from outside, on any rank; and stopping in time.

What ranks have to agree on after every step travels in one all-reduce of two numbers: whether
to stop, and how far a save in the background is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from megads.comm.groups import Groups
from megads.config.run_folder import STOP
from megads.monitor.run_state.interrupt import ctrl_c_heard, say_stopping
from megads.train.fault.walltime import Deadline

GO_ON, ASKED, LONG_ENOUGH, OUT_OF_TIME = 0, 1, 2, 3

ECHO_S = 1.0
"""MPICH sends Ctrl-C to a rank and to its guard, which hands it on: a SIGINT this soon after the first is the same."""


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

    Attributes:
        saving: tells this rank's part of what ``saves`` is of all; 0 unless it is replaced.
        saves: the highest number that ``saving`` gave on any rank when they last agreed.
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
        self.saving: Callable[[], int] = int
        self.saves = 0
        self.flag = torch.zeros(2, dtype=torch.int32, device=device)
        self.heard = in_place and ctrl_c_heard()  # during the set-up
        self.in_place = in_place
        self.interrupted_at = 0.0  # by the first SIGINT
        signal.signal(signal.SIGUSR1, self._hear)
        signal.signal(signal.SIGTERM, self._hear)
        # A launcher holds the signal back until somebody listens.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        if in_place:
            signal.signal(signal.SIGINT, signal.default_int_handler if self.heard else self._hear)
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
                signal.signal(signal.SIGHUP, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.in_place and self.groups.rank == 0 and not self.heard:
            say_stopping(again=number == signal.SIGINT)
        self.heard = True
        if number != signal.SIGINT:
            return
        if not self.interrupted_at:
            self.interrupted_at = time.monotonic()
        elif time.monotonic() - self.interrupted_at > ECHO_S:
            raise KeyboardInterrupt

    def agreed(self, *, step: bool = True, validation: bool = False) -> str:
        """Return why to stop now, the same on every rank; empty: continue. Collective.

        Args:
            step: whether the next question comes only after another step.
            validation: whether it comes only after another validation.
        """
        wish, saves = ASKED if self.heard else GO_ON, self.saving()
        if self.groups.rank == 0:
            # One clock decides: ranks whose clocks differ would else leave at different steps.
            # A file system that has a bad moment is no reason to end (os.path.exists raises nothing).
            wish = max(wish, ASKED if os.path.exists(self.file) else GO_ON)
            wish = LONG_ENOUGH if self.exit_duration_min and time.monotonic() >= self.exit_at else wish
            wish = OUT_OF_TIME if self.deadline.is_near(step=step, validation=validation) else wish
        if self.groups.grid.world_size > 1:
            self.flag.copy_(torch.tensor([wish, saves], dtype=torch.int32))
            dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
            wish, saves = self.flag.tolist()
        self.saves = saves
        return self._why(wish)

    def _why(self, wish: int) -> str:
        if wish == OUT_OF_TIME:
            return self.deadline.why()
        longest = f"EXIT_DURATION_IN_MINS={self.exit_duration_min:g}"
        return {GO_ON: "", ASKED: "asked to stop", LONG_ENOUGH: longest}[wish]
