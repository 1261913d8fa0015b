"""What a launch does while the ranks of a run are there: it acts on signals, on outcome.json, and on time."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from megads.config.run_folder import STOP
from megads.errors import EXIT_DONE, EXIT_STOPPED
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.supervise.processes import Family, children, print_line, send
from megads.monitor.run_state.outcome import find_outcome, read_heartbeat

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
POLL_S = 0.1
LOOK_S = 1.0  # between looks at outcome.json while the ranks run
KILL_AFTER_S = 10.0  # from TERM to KILL
FAILED_GRACE_S = 5.0  # for the other ranks to end, once one has reported its failure
TERM_GRACE_S = 300.0  # from a SIGTERM's stop request to the end of patience; and twice the longest save
END_GRACE_S = 300.0  # for the launcher to end, once the ranks have said that the run did


@dataclass
class Watch:
    """Waits for the launcher and acts on signals and time meanwhile."""

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
        """Return when the launcher has ended."""
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
                beat = read_heartbeat(self.run_dir)
                self._be_patient(TERM_GRACE_S + (2 * beat.save_s if beat else 0.0))
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


@contextlib.contextmanager
def caught(note: Callable[[int], None], signals: Iterable[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Call ``note`` for each of ``signals`` instead of dying of it; nohup's ignored SIGHUP stays ignored."""

    def handler(number: int, frame: FrameType | None) -> None:
        note(number)

    before = {}
    for number in signals:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def say(text: str) -> None:
    """Write one line of the launcher to stderr; the run continues when nobody reads it."""
    print_line(f"megads: {text}")
