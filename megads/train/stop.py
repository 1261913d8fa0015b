"""Asking a run to stop after the current step, from outside, on any rank."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from megads.config.files import STOP
from megads.dist.groups import Groups


class StopRequest:
    """Collects stop requests: signals to this rank, and the control file in the run folder.

    SIGUSR1 is the request on every launcher, and SIGTERM too, which a scheduler sends to
    every process of a job at its end. A rank that nobody launches for (it runs in place)
    also takes SIGINT and SIGHUP for one; a second SIGINT then ends it at once.

    Args:
        run_dir: whose file ``stop`` is a request; read by rank 0 only.
        groups: all ranks agree over the world.
        device: of the flag the ranks exchange.
        in_place: whether this process is the one the user's terminal talks to.
    """

    def __init__(self, run_dir: Path, groups: Groups, device: torch.device, *, in_place: bool):
        self.file = run_dir / STOP
        self.groups = groups
        self.flag = torch.zeros((), dtype=torch.int32, device=device)
        self.heard = False
        signal.signal(signal.SIGUSR1, self._hear)
        signal.signal(signal.SIGTERM, self._hear)
        # A launcher holds the signal back until somebody listens.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        if in_place:
            signal.signal(signal.SIGINT, self._hear)
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
                signal.signal(signal.SIGHUP, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def agreed(self) -> bool:
        """Return whether any rank was asked to stop; the same on every rank. Collective."""
        asked = self.heard or (self.groups.rank == 0 and self.file.exists())
        if self.groups.grid.world_size == 1:
            return asked
        self.flag.fill_(int(asked))
        dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
        return bool(self.flag.item())
