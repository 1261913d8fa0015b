"""How ranks ended: what the launcher knows and what they left, and a line for people."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from megads.cluster.hosts import this_host
from megads.config.run_folder import OUTCOME, STOP
from megads.errors import EXIT_DONE, EXIT_STOPPED, EXIT_WRONG, MegadsError
from megads.launch.supervise.watch import say
from megads.monitor.causes.classify import End, classify
from megads.monitor.run_state.attempts import Attempt, append_attempt, close_attempts, spent_by
from megads.monitor.run_state.outcome import Outcome, last_seen, read_heartbeat, read_outcome, write_first_outcome


@dataclass(frozen=True)
class Ended:
    """How a plan ended: the launcher's exit code (-n after signal n), what the ranks left, what was asked meanwhile."""

    starter: int
    outcome: Outcome | None
    aborted_by: int = 0
    stop_asked: bool = False
    out_of_memory: bool = False  # this host, meanwhile
    said: str = ""  # the last lines that launcher and ranks printed, where they go to a file
    left_s: float | None = None  # of the allocation; None: unknown

    @property
    def exit_code(self) -> int:
        """The exit code of the run; 0 only if starter and ranks ended well."""
        said = self.outcome.exit_code if self.outcome else None
        # A checkpoint that was saved on request stays saved, also when a scheduler's signal
        # then reached the launcher; a success counts only if everything ended well.
        if said is not None and (self.starter == 0 or said != 0) and not (said == EXIT_STOPPED and self.aborted_by):
            return said
        if self.aborted_by:
            return 128 + self.aborted_by
        if self.starter == 0:
            return 1
        return 128 - self.starter if self.starter < 0 else self.starter


def remove_end(run_dir: Path) -> None:
    """Remove what an earlier start of the run left of its end, once it is in ``attempts.jsonl``."""
    close_attempts(run_dir)
    for name in (OUTCOME, STOP):
        (run_dir / name).unlink(missing_ok=True)


def report_end(ended: Ended, run_dir: Path, attempt: Attempt | None = None) -> None:
    """Say how a run failed that did not end well; the ranks have said what they could before. Write its row."""
    _say_end(ended, run_dir)
    if attempt is not None:
        append_attempt(run_dir, with_end(attempt, ended, run_dir))


def _say_end(ended: Ended, run_dir: Path) -> None:
    outcome = ended.outcome
    if outcome is not None and outcome.exit_code not in (EXIT_DONE, EXIT_WRONG, EXIT_STOPPED) and outcome.message:
        say(f"the run failed: {outcome.message.splitlines()[0]}")
    elif outcome is None and ended.aborted_by:
        name = signal.Signals(ended.aborted_by).name
        what = f"ended by signal {ended.aborted_by} ({name}), before the run could save"
        _write_outcome(ended, run_dir, "killed", what)
    elif outcome is None:
        how = {True: f"was killed by signal {-ended.starter}", False: f"ended with {ended.starter}"}[ended.starter < 0]
        kind = "killed" if ended.starter < 0 else "lost"
        if ended.out_of_memory and ended.starter in (-signal.SIGKILL, 128 + signal.SIGKILL):
            how, kind = f"{how}: this host ran out of memory", "memory"
        what = f"the ranks ended without an outcome (the launcher {how})"
        say(f"{what}; see their last output above{last_seen(run_dir)}")
        _write_outcome(ended, run_dir, kind, what)


def _write_outcome(ended: Ended, run_dir: Path, kind: str, what: str) -> None:
    """Write the outcome of a run of which no rank did."""
    beat = read_heartbeat(run_dir)
    with contextlib.suppress(MegadsError):  # a full disk; what it says was said
        write_first_outcome(
            run_dir, Outcome(ended.exit_code, what, beat.iteration if beat else 0, kind, -1, this_host())
        )


def with_end(attempt: Attempt, ended: Ended, run_dir: Path, began: int | None = None) -> Attempt:
    """Return ``attempt`` with how it ended; the caller writes it.

    Args:
        began: the iteration that it was planned to start from; None: that of ``attempt``.
    """
    # What no rank has said, the launcher has.
    outcome, beat = ended.outcome or read_outcome(run_dir), read_heartbeat(run_dir)
    seen = beat.iteration if beat is not None and beat.time >= attempt.started else 0
    kind, message = (outcome.kind, outcome.message) if outcome else ("", f"the launcher ended with {ended.starter}")
    host = outcome.host if outcome else ""
    reached = max(outcome.iteration if outcome else 0, seen, attempt.began)
    has_trained = reached > (attempt.began if began is None else began)
    end = End(ended.exit_code, kind, message, host, ended.said, ended.left_s, ended.aborted_by, has_trained)
    told = classify(end)
    return replace(
        attempt,
        ended=time.time(),
        reached=reached,
        exit_code=ended.exit_code,
        kind=kind,
        rank=outcome.rank if outcome else -1,
        host=told.host or host,
        message=message,
        cause=told.cause,
        verdict=told.verdict,
        spent=spent_by(run_dir, attempt),
    )
