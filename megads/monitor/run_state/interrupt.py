"""Ctrl-C on a rank that no launcher of megads watches: the request to stop, and the end when it is pressed again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

from megads.cluster.hosts import this_host
from megads.config.run_folder import OUTCOME
from megads.errors import MegadsError
from megads.monitor.run_state.outcome import Outcome, find_outcome, read_heartbeat, write_first_outcome

EXIT_INTERRUPTED = 128 + signal.SIGINT

_asked: list[int] = []


def handle_ctrl_c(run_dir: Path) -> None:
    """Take the first Ctrl-C from now on as the request to stop, and the second one for the end; SIGINT may be blocked.

    The set-up continues after the first one: the run then stops before its first step, and says so. The second one
    ends the process at once, with an outcome: what is imported during the set-up may swallow exceptions.

    Args:
        run_dir: where the outcome is written.
    """

    def end(number: int, frame: FrameType | None) -> None:
        line = report_interrupted(run_dir)
        with suppress(OSError):  # nobody reads any more
            os.write(2, line.encode())
        os._exit(EXIT_INTERRUPTED)

    def hear(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, end)
        _asked.append(number)
        report_stopping(again=True)

    _asked.clear()
    signal.signal(signal.SIGINT, hear)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def was_ctrl_c_pressed() -> bool:
    """Return whether Ctrl-C was pressed since :func:`handle_ctrl_c`."""
    return bool(_asked)


def report_stopping(*, again: bool) -> None:
    """Write that the run stops. For signal handlers: not through a stream, which may be in use right now.

    Args:
        again: whether another Ctrl-C ends the run.
    """
    more = "; press Ctrl-C again to abort" if again else ""
    with suppress(OSError):  # nobody reads any more
        os.write(2, f"megads: stopping after this step and saving{more}\n".encode())


def report_interrupted(run_dir: Path) -> str:
    """Write the outcome of a run that Ctrl-C ended, unless it has one, and return the line to print."""
    if (run_dir / OUTCOME).exists():
        outcome = find_outcome(run_dir)
        return f"megads: interrupted{f'; {outcome.message.splitlines()[0]}' if outcome and outcome.message else ''}\n"
    beat = read_heartbeat(run_dir)
    how = f"ended by signal {int(signal.SIGINT)} (SIGINT), before the run could save"
    with suppress(MegadsError):  # a full disk; the line says it
        iteration = beat.iteration if beat else 0
        write_first_outcome(run_dir, Outcome(EXIT_INTERRUPTED, how, iteration, "killed", -1, this_host()))
    return "megads: interrupted before the run could save\n"
