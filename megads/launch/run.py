"""Run a plan: start the ranks, pass signals on, leave nothing behind, say how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from megads.config.files import OUTCOME, STOP
from megads.errors import LaunchError
from megads.launch.plan import LaunchPlan

RESUME = 75  # exit code: stopped on purpose with a checkpoint

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
POLL_S = 0.1
LOOK_S = 1.0  # between looks at outcome.json while the ranks run
KILL_AFTER_S = 10.0  # from TERM to KILL
FAILED_GRACE_S = 5.0  # for the other ranks to end, once one has reported its failure
TERM_GRACE_S = 300.0  # from a SIGTERM's stop request to the end of patience

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def run_plan(plan: LaunchPlan, run_dir: Path, env: Mapping[str, str]) -> int:
    """Run ``plan`` and return the exit code of the run.

    A plan that is ``in_place`` replaces this process and does not return. Otherwise the
    ranks get a session of their own, so that a terminal's Ctrl-C reaches only this
    process. SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the ranks to save and stop, by
    SIGUSR1 and by the file ``<run_dir>/stop``; a second SIGINT or SIGTERM ends them.
    When this returns, or dies, no process of the run is left.

    Args:
        plan: what to run.
        run_dir: the run folder; an ``outcome.json`` or ``stop`` of an earlier run in it is removed.
        env: the environment to start from.

    Returns:
        What ``outcome.json`` says, except that 0 counts only if the starter ended well too;
        else the starter's own code, 128 + n after signal n; never 0 without an outcome.

    Raises:
        LaunchError: when the program of the plan can not be started.
    """
    for name in (OUTCOME, STOP):
        (run_dir / name).unlink(missing_ok=True)
    if plan.in_place:
        return _replace_process(plan, env)
    signals: list[int] = []
    with _caught(signals.append), _orphans_adopted():
        family = _Family(_start(plan, env))
        try:
            aborted_by = _Watch(family, plan, run_dir, signals).wait()
        finally:
            family.kill()
    return _exit_code(family.starter.returncode, read_outcome(run_dir), aborted_by)


def read_outcome(run_dir: Path) -> dict[str, Any] | None:
    """Return what the ranks left in ``outcome.json``: exit_code, message, iteration; None if there is none."""
    try:
        outcome = json.loads((run_dir / OUTCOME).read_text())
    except (OSError, ValueError):
        return None
    return outcome if isinstance(outcome, dict) and isinstance(outcome.get("exit_code"), int) else None


def _exit_code(child: int, outcome: dict[str, Any] | None, aborted_by: int) -> int:
    said = outcome["exit_code"] if outcome else None
    # A checkpoint that was saved on request stays saved, also when a scheduler's signal
    # then reached the starter; a success counts only if everything ended well.
    if said is not None and (child == 0 or said != 0) and not (said == RESUME and aborted_by):
        return int(said)
    if aborted_by:
        return 128 + aborted_by
    if child == 0:
        _say("the ranks ended without an outcome; what they printed last is above")
        return 1
    return 128 - child if child < 0 else child


def _replace_process(plan: LaunchPlan, env: Mapping[str, str]) -> int:
    # Blocked, not ignored: a stop request that comes before the rank has its handler waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(plan.argv[0], plan.argv, plan.environment(env))
    except OSError as error:
        raise LaunchError(f"{plan.argv[0]}: {error.strerror}; it should be an executable program") from None


def _start(plan: LaunchPlan, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            plan.argv,
            env=plan.environment(env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_in_child,
        )
    except OSError as error:
        raise LaunchError(f"{plan.argv[0]}: {error.strerror}; it should be an executable program") from None


def _in_child() -> None:
    # A stop request may come before a rank has its handler; the stop file waits for it, so
    # the signal may be missed but must not kill.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Family:
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
        found = [pid for pid in children(os.getpid()) if pid not in self._others]
        for pid in found:
            found += children(pid)
        return found

    def send(self, number: int) -> None:
        """Send a signal to every member."""
        for pid in self.members():
            _send(pid, number)

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
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything, the fields behind it are fixed.
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


@dataclass
class _Watch:
    """Waits for the starter and acts on signals and time meanwhile."""

    family: _Family
    plan: LaunchPlan
    run_dir: Path
    signals: list[int]
    stop_asked: bool = False
    terminate_at: float = float("inf")
    kill_at: float = float("inf")
    look_at: float = 0.0
    aborted_by: int = 0

    def wait(self) -> int:
        """Return when the starter has ended: the signal it was ended for, or 0."""
        while self.family.starter.poll() is None:
            while self.signals:
                self._on_signal(self.signals.pop(0))
            self._on_time(time.monotonic())
            time.sleep(POLL_S)
        return self.aborted_by

    def _on_signal(self, number: int) -> None:
        if not self.stop_asked:
            self.stop_asked = True
            _say("stopping after this step and saving; press Ctrl-C again to abort")
            self._ask_to_stop()
            if number == signal.SIGTERM:
                self.terminate_at = time.monotonic() + TERM_GRACE_S
        elif number in (signal.SIGINT, signal.SIGTERM) and not self.aborted_by:
            _say(f"aborting; what does not end within {KILL_AFTER_S:g} s is killed")
            self.aborted_by = number
            self._terminate()

    def _on_time(self, now: float) -> None:
        if now >= self.look_at:
            self.look_at = now + LOOK_S
            outcome = read_outcome(self.run_dir)
            if outcome and outcome["exit_code"] not in (0, RESUME):
                self.terminate_at = min(self.terminate_at, now + FAILED_GRACE_S)
        if now >= self.terminate_at and self.kill_at == float("inf"):
            self._terminate()
        if now >= self.kill_at:
            self.family.kill()

    def _ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; the signal asks as well
            (self.run_dir / STOP).touch()
        starter = self.family.starter.pid
        for pid in [starter] if self.plan.forwards_signals else children(starter):
            _send(pid, signal.SIGUSR1)

    def _terminate(self) -> None:
        self.kill_at = time.monotonic() + KILL_AFTER_S
        self.family.send(signal.SIGTERM)


@contextlib.contextmanager
def _orphans_adopted() -> Iterator[None]:
    """Make this process the parent of processes below it whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


@contextlib.contextmanager
def _caught(note: Callable[[int], None]) -> Iterator[None]:
    """Call ``note`` for each of STOP_SIGNALS instead of dying of it; nohup's ignored SIGHUP stays ignored."""

    def handler(number: int, frame: FrameType | None) -> None:
        note(number)

    before = {}
    for number in STOP_SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _say(text: str) -> None:
    sys.stderr.write(f"megads: {text}\n")
    sys.stderr.flush()
