"""Processes below this one: finding them, signalling them, and none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a process hands on to the ranks below it."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Family:
    """The launcher and every process below it, wherever it moved.

    torchrun puts its ranks into sessions of their own, so process groups do not find
    them; and the ranks of a launcher that died are found because this process adopts
    orphans. ``others``, children that were there before, are not of the family.
    """

    def __init__(self, starter: subprocess.Popen[bytes], others: Sequence[int] = ()) -> None:
        self.starter, self._others = starter, others

    def members(self) -> list[int]:
        """Return the living processes of the family, parents first."""
        others = {pid for other in self._others for pid in (other, *children(other, recursive=True))}
        return [pid for pid in children(os.getpid(), recursive=True) if pid not in others]

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


def children(pid: int, *, recursive: bool = False) -> list[int]:
    """Return the living children of a process, or all processes below it, parents first."""
    import psutil  # late: a single rank takes the place of its launcher and needs none of this

    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive):
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each.pid)
    return found


def print_line(text: str) -> None:
    """Write a line to stderr; nobody may read it any more."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


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


def memory_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this host and control group the kernel has killed for memory so far."""
    lines = _lines(proc / "vmstat")
    for group in _lines(proc / "self/cgroup"):
        number, kinds, path = (*group.split(":", 2), "", "")[:3]
        if number == "0":
            lines += _lines(cgroups / path.lstrip("/") / "memory.events")
        elif "memory" in kinds.split(","):
            lines += _lines(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    return sum(int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
