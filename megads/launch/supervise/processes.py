"""Processes below this one: finding them, signalling them, and none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Family:
    """The starter and every process below it, wherever it moved.

    torchrun puts its ranks into sessions of their own, so process groups do not find
    them; and the ranks of a starter that died are found because this process adopts
    orphans. Processes that were there before are not of the family.
    """

    def __init__(self, starter: subprocess.Popen[bytes]) -> None:
        self.starter = starter
        self._others = set(children(os.getpid())) - {starter.pid}

    def members(self) -> list[int]:
        """Return the living processes of the family, parents first."""
        below = families()
        found = [pid for pid in below.get(os.getpid(), []) if pid not in self._others]
        for pid in found:
            found += below.get(pid, [])
        return found

    def send(self, number: int) -> None:
        """Send a signal to every member."""
        for pid in self.members():
            send(pid, number)

    def kill(self) -> None:
        """Kill what is left and wait until it is gone."""
        for _ in range(100):
            alive = self.members()
            if not alive:
                break
            self.send(signal.SIGKILL)
            for pid in alive:
                with contextlib.suppress(ChildProcessError):
                    if pid != self.starter.pid:
                        os.waitpid(pid, os.WNOHANG)
            self.starter.poll()
            time.sleep(0.02)
        self.starter.wait()


def children(pid: int) -> list[int]:
    """Return the living children of a process, from /proc."""
    return families().get(pid, [])


def families() -> dict[int, list[int]]:
    """Return the living children of every process, from one look at /proc."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything, the fields behind it are fixed.
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                found.setdefault(int(parent), []).append(int(stat.parent.name))
    return {parent: sorted(pids) for parent, pids in found.items()}


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone or another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


@contextlib.contextmanager
def orphans_adopted() -> Iterator[None]:
    """Make this process the parent of processes below it whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def die_with_parent(number: int) -> None:
    """Let the kernel send ``number`` to this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
