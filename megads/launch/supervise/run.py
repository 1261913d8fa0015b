"""Run a plan: start the ranks, pass signals on, leave nothing behind, say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from megads.cluster.hosts import this_host
from megads.config.run_folder import OUTCOME, STOP
from megads.errors import EXIT_DONE, EXIT_STOPPED, EXIT_WRONG, LaunchError, MegadsError
from megads.launch.starters.plan import LaunchPlan
from megads.launch.supervise.memory_kills import memory_kills
from megads.launch.supervise.processes import Family, children, die_with_parent, orphans_adopted, send
from megads.monitor.run_state.outcome import Outcome, find_outcome, last_seen, read_heartbeat, tell_first

RESUME = EXIT_STOPPED  # exit code: stopped on purpose with a checkpoint

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
POLL_S = 0.1
LOOK_S = 1.0  # between looks at outcome.json while the ranks run
KILL_AFTER_S = 10.0  # from TERM to KILL
FAILED_GRACE_S = 5.0  # for the other ranks to end, once one has reported its failure
TERM_GRACE_S = 300.0  # from a SIGTERM's stop request to the end of patience; and twice the longest save
END_GRACE_S = 300.0  # for the starter to end, once the ranks have said that the run did
OUTCOME_WAIT_S = 1.0  # for what a rank on another host has written


@dataclass(frozen=True)
class Ended:
    """How a plan ended: the starter's exit code (-n after signal n), what the ranks left, what was asked meanwhile."""

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
        # then reached the starter; a success counts only if everything ended well.
        if said is not None and (self.starter == 0 or said != 0) and not (said == RESUME and self.aborted_by):
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
        plan: what to run.
        run_dir: the run folder; files of an earlier run in it that report its end are removed.
        env: the environment to start from.
        saves: whether the ranks listen to a stop request; if not, the first signal ends them.

    Returns:
        What ``outcome.json`` says, except that 0 counts only if the starter ended well too;
        else the starter's own code, 128 + n after signal n; never 0 without an outcome.

    Raises:
        LaunchError: when the program of the plan cannot be started, or a file of it not be written.
    """
    remove_end(run_dir)
    if plan.in_place:
        plan.write_files()
        return _replace_process(plan, env)
    ended = run_once(plan, run_dir, env, saves=saves)
    tell_end(ended, run_dir)
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
        env: the environment to start from.
        saves: as in :func:`run_plan`.
    """
    plan.write_files()
    signals: list[int] = []
    kills = memory_kills()
    with caught(signals.append), orphans_adopted():
        family = Family(_start(plan, env))
        watch = _Watch(family, plan, run_dir, signals, saves)
        try:
            watch.wait()
        finally:
            family.kill()
    outcome = find_outcome(run_dir, 0.0 if watch.aborted_by else OUTCOME_WAIT_S)
    return Ended(
        family.starter.returncode, outcome, watch.aborted_by, watch.stop_asked, out_of_memory=memory_kills() > kills
    )


def tell_end(ended: Ended, run_dir: Path) -> None:
    """Say how a run failed that did not end well; the ranks have said what they could before."""
    outcome = ended.outcome
    if outcome is not None and outcome.exit_code not in (EXIT_DONE, EXIT_WRONG, EXIT_STOPPED) and outcome.message:
        say(f"the run failed: {outcome.message.splitlines()[0]}")
    elif outcome is None and ended.aborted_by:
        name = signal.Signals(ended.aborted_by).name
        _tell(ended, run_dir, "killed", f"ended by signal {ended.aborted_by} ({name}), before the run could save")
    elif outcome is None:
        how = {True: f"was killed by signal {-ended.starter}", False: f"ended with {ended.starter}"}[ended.starter < 0]
        kind = "killed" if ended.starter < 0 else "lost"
        if ended.out_of_memory and ended.starter in (-signal.SIGKILL, 128 + signal.SIGKILL):
            how, kind = f"{how}: this host ran out of memory", "memory"
        what = f"the ranks ended without an outcome (the starter {how})"
        say(f"{what}; see their last output above{last_seen(run_dir)}")
        _tell(ended, run_dir, kind, what)


def _tell(ended: Ended, run_dir: Path, kind: str, what: str) -> None:
    """Write the outcome of a run of which no rank did."""
    beat = read_heartbeat(run_dir)
    with contextlib.suppress(MegadsError):  # a full disk; what it says was said
        tell_first(run_dir, Outcome(ended.exit_code, what, beat.iteration if beat else 0, kind, -1, this_host()))


def _replace_process(plan: LaunchPlan, env: Mapping[str, str]) -> int:
    # Blocked, not ignored: a stop request that comes before the rank has its handler waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])
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
    die_with_parent(signal.SIGTERM)


@dataclass
class _Watch:
    """Waits for the starter and acts on signals and time meanwhile."""

    family: Family
    plan: LaunchPlan
    run_dir: Path
    signals: list[int]
    saves: bool = True
    stop_asked: bool = False
    insisted: bool = False  # by SIGINT or SIGTERM
    ended_well: bool = False  # the run, by its outcome
    terminate_at: float = float("inf")
    kill_at: float = float("inf")
    look_at: float = 0.0
    aborted_by: int = 0

    def wait(self) -> None:
        """Return when the starter has ended."""
        while self.family.starter.poll() is None:
            while self.signals:
                self._on_signal(self.signals.pop(0))
            self._on_time(time.monotonic())
            time.sleep(POLL_S)

    def _on_signal(self, number: int) -> None:
        if not self.saves:
            self._abort(number, "stopping")
        elif self.stop_asked and (number == signal.SIGINT or (number == signal.SIGTERM and self.insisted)):
            self._abort(number, "aborting")
        else:
            if not self.stop_asked:
                self.stop_asked = True
                say("stopping after this step and saving; press Ctrl-C again to abort")
                self._ask_to_stop()
            if number == signal.SIGTERM:
                self._be_patient(TERM_GRACE_S + 2 * _longest_save_s(self.run_dir))
        self.insisted = self.insisted or number in (signal.SIGINT, signal.SIGTERM)

    def _be_patient(self, seconds: float) -> None:
        self.terminate_at = min(self.terminate_at, time.monotonic() + seconds)

    def _abort(self, number: int, word: str) -> None:
        if not self.aborted_by:
            say(f"{word}; whatever does not end within {KILL_AFTER_S:g} s is killed")
            self.aborted_by = number
            self._terminate()

    def _on_time(self, now: float) -> None:
        if now >= self.look_at:
            self.look_at = now + LOOK_S
            outcome = find_outcome(self.run_dir)
            if outcome:
                self.ended_well = outcome.exit_code in (EXIT_DONE, EXIT_STOPPED)
                self._be_patient(END_GRACE_S if self.ended_well else FAILED_GRACE_S)
        if now >= self.terminate_at and self.kill_at == float("inf"):
            if self.ended_well:
                say("the run has ended, but its launcher or some ranks have not; ending them")
            self._terminate()
        if now >= self.kill_at:
            self.family.kill()

    def _ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; the signal asks as well
            (self.run_dir / STOP).touch()
        starter = self.family.starter.pid
        for pid in [starter] if self.plan.forwards_signals else children(starter):
            send(pid, signal.SIGUSR1)

    def _terminate(self) -> None:
        self.kill_at = time.monotonic() + KILL_AFTER_S
        self.family.send(signal.SIGTERM)


def _longest_save_s(run_dir: Path) -> float:
    beat = read_heartbeat(run_dir)
    return beat.save_s if beat else 0.0


@contextlib.contextmanager
def caught(note: Callable[[int], None]) -> Iterator[None]:
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


def say(text: str) -> None:
    """Write one line of the launcher to stderr."""
    with contextlib.suppress(OSError):  # nobody reads any more; the run continues
        sys.stderr.write(f"megads: {text}\n")
        sys.stderr.flush()
