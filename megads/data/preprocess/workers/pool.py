"""Start worker processes, and hear what they say."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from megads.cluster.parent import end_with
from megads.errors import DataError


class Pool:
    """Worker processes, forked: this process must not have used a library that starts threads."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._pids: list[int] = []
        self._gone: set[int] = set()  # numbers of workers that were waited for

    def start(self, serve: Callable[[Connection], None], close: Sequence[int] = ()) -> int:
        """Start a worker that calls ``serve`` with its end of a pipe, and return its number.

        Args:
            serve: returns when the pipe is closed.
            close: descriptors that are none of the worker's business.
        """
        ours, theirs = Pipe()
        leader = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                for each in (*self._pipes, ours):
                    each.close()
                for handle in close:
                    os.close(handle)
                # The leader hears the signals of the terminal, and ends the others.
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                end_with(leader)
                serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._pipes.append(ours)
        self._pids.append(pid)
        return len(self._pids) - 1

    def __len__(self) -> int:
        return len(self._pids)

    def send(self, worker: int, message: Any) -> None:
        """Send ``message``; a worker that is gone is heard of in :meth:`receive`."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[worker].send(message)

    def receive(self, timeout: float, *bells: int) -> list[tuple[int, Any]]:
        """Return (worker, message) pairs, as soon as there is one, a bell rings, or the time is over.

        Raises:
            DataError: a worker died.
        """
        found = []
        for each in wait([*self._pipes, *bells], timeout):
            if isinstance(each, Connection):
                worker = self._pipes.index(each)
                try:
                    found.append((worker, each.recv()))
                except (EOFError, ConnectionResetError):
                    raise DataError(self._how_it_died(worker)) from None
        return found

    def close(self) -> None:
        """End all workers at once."""
        left = [pid for worker, pid in enumerate(self._pids) if worker not in self._gone]
        for pid in left:
            os.kill(pid, signal.SIGKILL)  # not waited for yet: the number is still its own
        for pid in left:
            os.waitpid(pid, 0)
        for pipe in self._pipes:
            pipe.close()
        self._pids, self._pipes = [], []

    def _how_it_died(self, worker: int) -> str:
        _, status = os.waitpid(self._pids[worker], 0)
        self._gone.add(worker)
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            cure = "; probably out of memory: use fewer --workers" if name == "SIGKILL" else ""
            return f"a worker was ended by {name}{cure}; rerun the same command to resume"
        return "a worker ended unexpectedly; rerun the same command to resume"
