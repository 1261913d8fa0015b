"""Run a plan: start the ranks, pass signals on, leave nothing behind, say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from megads.cluster.hosts import this_host
from megads.config.run_folder import OUTCOME, STOP
from megads.errors import EXIT_DONE, EXIT_STOPPED, EXIT_WRONG, LaunchError, MegadsError
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.processes import Family, children, die_with_parent, memory_kills, orphans_adopted
from megads.launch.supervise.watch import Watch, caught, say
from megads.monitor.run_state.outcome import Outcome, find_outcome, last_seen, read_heartbeat, write_first_outcome

OUTCOME_WAIT_S = 1.0  # for what a rank on another host has written


@dataclass(frozen=True)
class Ended:
    """How a plan ended: the launcher's exit code (-n after signal n), what the ranks left, what was asked meanwhile."""

    starter: int
    outcome: Outcome | None
    aborted_by: int = 0
    stop_asked: bool = False
    out_of_memory: bool = False  # this host, meanwhile

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


def run_plan(plan: LaunchPlan, run_dir: Path, env: Mapping[str, str], *, saves: bool = True) -> int:
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

    Returns:
        What ``outcome.json`` says, except that 0 counts only if the launcher ended well too;
        else the launcher's own code, 128 + n after signal n; never 0 without an outcome.

    Raises:
        LaunchError: when the program of the plan cannot be started, or a file of it not be written.
    """
    remove_end(run_dir)
    if plan.in_place:
        plan.write_files()
        # Blocked, not ignored: a stop request that comes before the rank has its handler waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])
        become_process(plan, env)
    ended = run_once(plan, run_dir, env, saves=saves)
    report_end(ended, run_dir)
    return ended.exit_code


def remove_end(run_dir: Path) -> None:
    """Remove what an earlier start of the run left of its end."""
    for name in (OUTCOME, STOP):
        (run_dir / name).unlink(missing_ok=True)


def run_once(plan: LaunchPlan, run_dir: Path, env: Mapping[str, str], *, saves: bool = True) -> Ended:
    """Run ``plan`` in processes of its own and return how it ended; see :func:`run_plan`.

    Args:
        plan: what to run; its ``in_place`` does not count.
        run_dir: the run folder, whose ``outcome.json`` is not of an earlier run.
    """
    plan.write_files()
    signals: list[int] = []
    kills = memory_kills()
    with caught(signals.append), orphans_adopted():
        family = start_process(plan, env)
        watch = Watch(family, plan, run_dir, signals, saves)
        try:
            watch.wait()
        finally:
            family.kill()
    outcome = find_outcome(run_dir, 0.0 if watch.aborted_by else OUTCOME_WAIT_S)
    return Ended(
        family.starter.returncode, outcome, watch.aborted_by, watch.stop_asked, out_of_memory=memory_kills() > kills
    )


def report_end(ended: Ended, run_dir: Path) -> None:
    """Say how a run failed that did not end well; the ranks have said what they could before."""
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
