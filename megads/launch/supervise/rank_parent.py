"""A small parent for each rank, which lives to report how the rank died.

A process that is killed says nothing, and what its launcher says of it differs from starter to
starter and is no rank and host. So ``megads worker`` splits in two before it imports anything
large: the child is the rank, the parent waits, hands signals on, and when the child is
killed it names rank, host and signal, for people and in ``outcome.json``. When its own
parent, the launcher, is gone, it ends the rank, which nobody would end any more.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from megads.cluster.ranks import find_ranks
from megads.config.run_folder import OUTCOME
from megads.errors import EXIT_FAILED, MegadsError
from megads.launch.supervise.processes import FORWARDED, die_with_parent, memory_kills, print_line, send
from megads.monitor.run_state.outcome import Outcome, read_heartbeat, write_first_outcome

LOOK_S = 1.0  # between looks at whether the launcher is still there
KILL_AFTER_S = 10.0  # for a rank to save and leave, once its launcher is gone
HEARSAY_S = 0.5  # a launcher that kills the whole job kills this process too within it
WORDS_S = 3.0  # for a rank that failed to be the one that tells


def stand_guard(run_dir: Path, env: Mapping[str, str]) -> None:
    """Go on in a child process; this one waits for it and ends with its exit code.

    Returns in the child only. After signal n the exit code is 128 + n. When this process is
    killed, the child reports that and ends. Call it before a thread is started.

    Args:
        run_dir: where the outcome of a rank that was killed is written, unless there is one.
    """
    if not hasattr(signal, "sigtimedwait"):  # macOS: the rank is on its own
        return
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited; there would be no status to read
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    starter, guard, kills = os.getppid(), os.getpid(), memory_kills()
    theirs, ours = os.pipe()  # closed by the kernel when the guard ends, however it ends
    child = os.fork()
    if child == 0:
        os.close(ours)
        die_with_parent(signal.SIGCONT)  # also a rank that is stopped hears that its guard is gone
        if os.getppid() != guard:
            os._exit(128 + signal.SIGKILL)
        threading.Thread(target=_guard_the_guard, args=(theirs, run_dir, env), name="megads-guard", daemon=True).start()
        # A stop request that comes before the rank listens waits for it.
        signal.pthread_sigmask(signal.SIG_SETMASK, before | {signal.SIGUSR1})
        return
    os.close(theirs)
    status = _wait(child, starter, _name(env))
    code = os.waitstatus_to_exitcode(status)
    if code and not os.path.exists(run_dir / OUTCOME):
        _report_end(code, run_dir, env, out_of_memory=memory_kills() > kills)
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int, starter: int, name: str) -> int:
    """Return the wait status of ``child`` once it has ended; hand signals on meanwhile."""
    kill_at = float("inf")
    is_ending = is_stopped = False
    while True:
        heard = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, LOOK_S)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            send(child, heard.si_signo)
            is_ending = is_ending or heard.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        now = time.monotonic()
        if pid and os.WIFSTOPPED(status):
            is_stopped = True
            print_line(f"[{name}] stopped by {_signal(os.WSTOPSIG(status))}; the others wait until SIGCONT resumes it")
        elif pid and os.WIFCONTINUED(status):
            is_stopped, kill_at = False, float("inf")
        elif pid:
            return status
        if is_stopped and is_ending and kill_at == float("inf"):
            # It cannot hear the signal, its launcher waits for it, and nobody may be left who would end both.
            kill_at = now + KILL_AFTER_S
        if os.getppid() != starter and kill_at == float("inf"):
            # All ranks hear of it, so they may still save together.
            send(child, signal.SIGTERM)
            kill_at = now + KILL_AFTER_S
        if now >= kill_at:
            send(child, signal.SIGKILL)


def _guard_the_guard(pipe: int, run_dir: Path, env: Mapping[str, str]) -> None:
    """In the rank: wait for the end of its guard, report it, and end the rank, which nobody would hand signals to."""
    with suppress(OSError):
        os.read(pipe, 1)
    time.sleep(HEARSAY_S)
    if not os.path.exists(run_dir / OUTCOME):
        _report(run_dir, env, "killed", "its parent process, which reports its end, was killed")
    os.kill(os.getpid(), signal.SIGKILL)


def _report_end(code: int, run_dir: Path, env: Mapping[str, str], *, out_of_memory: bool) -> None:
    """Say how a rank ended that left no outcome, unless the whole job is being ended or another rank tells."""
    time.sleep(HEARSAY_S if code < 0 else WORDS_S)
    if os.path.exists(run_dir / OUTCOME) or -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return
    kind, how = "error", f"ended with exit code {code} and no message"
    if code < 0:
        kind, how = "killed", f"killed by {_signal(-code)}"
    if code == -signal.SIGKILL and out_of_memory:
        kind, how = "memory", f"killed by {_signal(-code)}: this host ran out of memory"
    _report(run_dir, env, kind, how)


def _report(run_dir: Path, env: Mapping[str, str], kind: str, how: str) -> None:
    name = _name(env)
    print_line(f"[{name}] {how}")
    beat = read_heartbeat(run_dir)
    with suppress(MegadsError):  # a full disk; the line above is said
        rank = find_ranks(env).rank
        iteration = beat.iteration if beat else 0
        write_first_outcome(
            run_dir, Outcome(EXIT_FAILED, f"{name}: {how}", iteration, kind, rank, socket.gethostname())
        )


def _name(env: Mapping[str, str]) -> str:
    try:
        return f"rank {find_ranks(env).rank} host {socket.gethostname()}"
    except MegadsError:  # the rank itself tells
        return f"host {socket.gethostname()}"


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
