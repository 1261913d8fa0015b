"""Says which ranks did not arrive when ranks wait for each other for too long.

In every rank a thread looks once a second at how long the main thread has been in its phase
(set-up, step, validation, save). When a phase takes longer than it may, the rank leaves its
position (phase, iteration, host, stack of the main thread) with the store at ``MASTER_ADDR``,
and so do the others, whose own time need not be over: a rank that is in a phase for long
asks there now and then whether another one has. One of them reports: who is where, who is
silent. Then the run ends, so that it can be started again.

A phase may take ``launch.timeout_s`` or :data:`USUAL_TIMES` times the longest of its kind so
far, whichever is longer; the first of each kind, the set-up included, twice ``timeout_s``. Only
seconds in which the watchdog itself runs count: a process that was stopped, or is in code
that holds Python's lock, is silent, and wakes up without blaming the others.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from megads.comm.groups import FIRST_TIMES
from megads.comm.hosts_of_ranks import known_hosts
from megads.errors import EXIT_FAILED, MegadsError
from megads.monitor.run_state.outcome import (
    Heartbeat,
    Outcome,
    find_outcome,
    read_heartbeat,
    write_first_outcome,
    write_heartbeat,
)
from megads.train.fault.hang_report import ANSWER_S, Board, Hang, Position, within
from megads.train.fault.kept_claim import KeptClaim

TICK_S = 1.0
PAUSE_S = 5.0  # a tick that came so much later than it should: this process did not run
USUAL_TIMES = 3.0
COLLECT_S = 5.0  # for every rank to leave its position
END = "end"  # the phase in which ranks no longer wait for each other
SPOKESMAN_S = 4.0  # for rank 0 to report before another one does
ASK_AFTER_S = 20.0  # in a phase: from then on a rank asks whether another one has left its position
ASK_S, LONGEST_ASK_S = 2.0, 20.0  # between these questions, of few ranks and of many
ASKED_PER_S = 500  # ranks, by the store


@dataclass
class Watchdog:
    """Watches the main thread of one rank, and writes rank 0's heartbeat."""

    rank: int
    world_size: int  # one rank alone has nobody to wait for and is not watched
    run_dir: Path  # for the outcome and the heartbeat
    timeout_s: float  # launch.timeout_s
    board: Board  # where ranks leave their positions when there is a hang
    attempt: int = 0  # number of this start of the run
    claim: KeptClaim = field(default_factory=KeptClaim)  # of rank 0 on the run folder
    hosts: Sequence[str] = ()  # of every rank once they are known, for those that answer as little as the store does
    end: Callable[[int], NoReturn] = os._exit  # ends this process
    iteration: int = 0  # done
    phase: str = "set-up"
    save_s: float = 0.0
    longest: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # seconds in each phase that is over
    _ran_s: float = 0.0  # seconds of the phase in which the watchdog ran
    _begun: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.time)
    _main: int = field(default_factory=threading.get_ident)
    _ask_at: float = 0.0
    _beating: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start watching the thread that made this object."""
        if self.rank == 0:
            with suppress(OSError):  # files of another user
                self.board.clear()
            # On its own: a file system that hangs must not hold up the watchdog.
            threading.Thread(target=self._keep_beating, name="megads-heartbeat", daemon=True).start()
        threading.Thread(target=self._watch, name="megads-watchdog", daemon=True).start()

    def enter(self, phase: str) -> None:
        """Note that the main thread begins ``phase``; what it was in before is over."""
        self.come_further()
        self.phase, self._since = phase, time.time()

    def come_further(self) -> None:
        """Note that the main thread came further within its phase, whose time starts over."""
        took = time.monotonic() - self._begun
        self.longest[self.phase] = max(took, self.longest.get(self.phase, 0.0))
        self.spent[self.phase] = self.spent.get(self.phase, 0.0) + took
        self._begun, self._ran_s = time.monotonic(), 0.0

    def saved(self, seconds: float) -> None:
        """Note the longest that a save took in this start, in the background or not; 0: there was none.

        The phase ``save`` may be no more than the moment in which what was written in the background
        becomes a checkpoint; the last save of a run takes longer, and may.
        """
        if seconds:
            self.save_s = seconds
            self.longest["save"] = max(seconds, self.longest.get("save", 0.0))

    def allowed_s(self) -> float:
        """Return how long the present phase may take."""
        usual = self.longest.get(self.phase)
        return FIRST_TIMES * self.timeout_s if usual is None else max(self.timeout_s, USUAL_TIMES * usual)

    def position(self) -> Position:
        """Return where the main thread is."""
        frame = sys._current_frames().get(self._main)
        stack = tuple(traceback.format_stack(frame)) if frame is not None else ()
        return Position(self.rank, socket.gethostname(), self.phase, self.iteration, round(self._ran_s, 1), stack)

    def beat(self) -> None:
        """Write the heartbeat."""
        host, now = socket.gethostname(), time.time()
        with self._beating:  # a thread must not put an older one over the last
            beat = Heartbeat(
                self.iteration, self.phase, self._since, now, os.getpid(), host, self.attempt, self.save_s,
                self.spent_until_now(),
            )  # fmt: skip
            write_heartbeat(self.run_dir, beat)

    def spent_until_now(self) -> dict[str, float]:
        """Return seconds in each phase of this start, to a millisecond; another thread may be entering one."""
        phase, now = self.phase, time.monotonic() - self._begun
        spent = dict(self.spent)
        spent[phase] = spent.get(phase, 0.0) + max(0.0, now)
        return {name: round(seconds, 3) for name, seconds in spent.items()}

    def _keep_beating(self) -> None:
        while True:
            time.sleep(TICK_S)
            self.beat()

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK_S)
            now = time.monotonic()
            if now - last < TICK_S + PAUSE_S:
                self._ran_s += now - last
            last = now
            if self.world_size > 1 and self.phase != END:
                if self._ran_s > self.allowed_s() or (self._asks(now) and self.board.called()):
                    self._end_hang()
                # A store that does not answer takes its time, in which this thread waits and runs.
                spent = min(time.monotonic() - now, 2 * ANSWER_S)
                self._ran_s, last = self._ran_s + spent, time.monotonic()

    def _asks(self, now: float) -> bool:
        """Return whether it is time to ask whether another rank has left its position."""
        # The store is there once ranks have met, for which they have timeout_s.
        after = self.timeout_s if self.phase == "set-up" else min(ASK_AFTER_S, self.timeout_s / 2)
        if self._ran_s < after or now < self._ask_at:
            return False
        self._ask_at = now + self._ask_every_s()
        return True

    def _ask_every_s(self) -> float:
        return min(LONGEST_ASK_S, max(ASK_S, self.world_size / ASKED_PER_S))

    def _end_hang(self) -> None:
        """Leave this rank's position, report unless another rank does, and end the process."""
        mine = self.position()
        self.board.post(self.rank, mine.text())
        turn = 0.0 if self.rank == 0 else SPOKESMAN_S + 0.02 * min(self.rank, 100)
        time.sleep(COLLECT_S + self._ask_every_s() + turn)
        if not self._is_told() and self.board.claim():
            self._report(mine)
        until = time.monotonic() + COLLECT_S
        while time.monotonic() < until and not self._is_told():
            time.sleep(0.5)
        self.end(1)

    def _is_told(self) -> bool:
        """Return whether some rank has said how the run ended, as far as the file system answers."""
        try:
            return within(ANSWER_S, lambda: find_outcome(self.run_dir)) is not None
        except RuntimeError:
            return False

    def _report(self, mine: Position) -> None:
        found, hosts = self.board.collect(self.world_size)
        known = known_hosts(self.hosts)
        if 0 not in known and (beat := read_heartbeat(self.run_dir)):
            known[0] = beat.host  # its store is silent with it
        hosts = {**known, **hosts}
        hang = Hang({**found, self.rank: mine}, hosts, self.world_size)
        with suppress(OSError):  # nobody reads any more
            sys.stderr.write(
                f"{hang.report()}megads: MEGADS_TIMEOUT_S={self.timeout_s:g} is the longest "
                "wait; raise it if a step really takes that long\n"
            )
            sys.stderr.flush()
        rank, host = hang.blamed()
        outcome = Outcome(EXIT_FAILED, hang.headline(), self.iteration, "hang", rank, host)
        with suppress(MegadsError, RuntimeError):  # a disk that is full or does not answer; the report is said
            within(ANSWER_S, lambda: write_first_outcome(self.run_dir, outcome))
