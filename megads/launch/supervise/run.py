"""Run a plan: start the ranks, pass signals on, leave nothing behind, say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from megads.errors import LaunchError
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.end import Ended, report_end
from megads.launch.supervise.evidence import Evidence
from megads.launch.supervise.processes import Family, children, die_with_parent, orphans_adopted
from megads.launch.supervise.record import begin_row
from megads.launch.supervise.watch import Watch, caught
from megads.monitor.run_state.attempts import Attempt
from megads.monitor.run_state.outcome import find_outcome

OUTCOME_WAIT_S = 1.0  # for what a rank on another host has written


def run_plan(
    plan: LaunchPlan, run_dir: Path, env: Mapping[str, str], *, saves: bool = True, attempt: Attempt | None = None
) -> int:
    """Run ``plan`` and return the exit code of the run.

    A plan that is ``in_place`` replaces this process and does not return. Otherwise the
    ranks get a session of their own, so that a terminal's Ctrl-C reaches only this
    process. SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the ranks to save and stop, by
    SIGUSR1 and by the file ``<run_dir>/stop``; a further SIGINT or SIGTERM ends them, but not
    the first SIGTERM, which a scheduler sends after its warning.
    When this returns, or dies, no process of the run is left.

    Args:
        run_dir: the run folder; files of an earlier run in it that report its end are removed.
        saves: whether the ranks listen to a stop request; if not, the first signal ends them.
        attempt: its row of ``attempts.jsonl``.

    Returns:
        What ``outcome.json`` says, except that 0 counts only if the launcher ended well too;
        else the launcher's own code, 128 + n after signal n; never 0 without an outcome.

    Raises:
        LaunchError: when the program of the plan cannot be started, or a file of it not be written.
    """
    attempt = begin_row(run_dir, attempt)
    if plan.in_place:
        plan.write_files()
        # Blocked, not ignored: a stop request that comes before the rank has its handler waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])
        become_process(plan, env)
    ended = run_once(plan, run_dir, env, saves=saves)
    report_end(ended, run_dir, attempt)
    return ended.exit_code


def run_once(plan: LaunchPlan, run_dir: Path, env: Mapping[str, str], *, saves: bool = True) -> Ended:
    """Run ``plan`` in processes of its own and return how it ended; see :func:`run_plan`.

    Args:
        plan: what to run; its ``in_place`` does not count.
        run_dir: the run folder, whose ``outcome.json`` is not of an earlier run.
    """
    plan.write_files()
    signals: list[int] = []
    evidence = Evidence()
    with caught(signals.append), orphans_adopted():
        family = start_process(plan, env)
        watch = Watch(family, plan, run_dir, signals, saves)
        try:
            watch.wait()
        finally:
            family.kill()
    outcome = find_outcome(run_dir, 0.0 if watch.aborted_by else OUTCOME_WAIT_S)
    return evidence.ended(plan, watch, outcome)


def start_process(plan: LaunchPlan, env: Mapping[str, str], *, stdin: int | None = subprocess.DEVNULL) -> Family:
    """Start the command of ``plan`` in a session of its own; it ends with this process.

    Raises:
        LaunchError: it cannot be started.
    """
    others = children(os.getpid())
    with _one_line(plan):
        starter = subprocess.Popen(
            plan.argv, env=plan.environment(env), stdin=stdin, start_new_session=True, preexec_fn=_in_child
        )
    return Family(starter, others)


def become_process(plan: LaunchPlan, env: Mapping[str, str]) -> NoReturn:
    """Let the command of ``plan`` take the place of this process.

    Raises:
        LaunchError: it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _one_line(plan):
        os.execvpe(plan.argv[0], plan.argv, plan.environment(env))


@contextlib.contextmanager
def _one_line(plan: LaunchPlan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{plan.argv[0]}: {error.strerror}; it should be an executable program") from None


def _in_child() -> None:
    # A stop request may come before a rank has its handler; the stop file waits for it, so
    # the signal may be missed but must not kill. Agents die of one that is meant for their ranks.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    die_with_parent(signal.SIGTERM)
