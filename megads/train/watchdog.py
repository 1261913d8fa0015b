"""Says which ranks did not arrive when ranks wait for each other for too long.

In every rank a thread looks once a second at how long the main thread has been in its phase
(set-up, step, validation, save). Nothing is sent for that. When a phase takes longer than
it may, all ranks leave their position (phase, iteration, host, stack of the main thread)
with the store at ``MASTER_ADDR``, and one of them reports: who is where, who is silent. Then
the run ends, so that it can be started again.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from megads.dist.timeout import FIRST_TIMES
from megads.errors import MegadsError
from megads.monitor.outcome import EXIT_FAILED, Heartbeat, Outcome, read_outcome, write_heartbeat, write_outcome
from megads.train.hang import Board, Hang, Position

TICK_S = 1.0
PAUSE_S = 5.0  # a tick that came so much later than it should: this process did not run
USUAL_TIMES = 3.0
COLLECT_S = 5.0  # for every rank to leave its position
END = "end"  # the phase in which ranks no longer wait for each other
SPOKESMAN_S = 4.0  # for rank 0 to report before another one does


@dataclass
class Watchdog:
    """Watches the main thread of one rank, and writes rank 0's heartbeat.

    Args:
        rank: of this process.
        world_size: of the run; one rank alone has nobody to wait for and is not watched.
        run_dir: for the outcome and the heartbeat.
        timeout_s: ``launch.timeout_s``.
        board: where ranks leave their positions when there is a hang.
        attempt: number of this start of the run.
        end: what ends this process; never returns.
    """

    rank: int
    world_size: int
    run_dir: Path
    timeout_s: float
    board: Board
    attempt: int = 0
    end: Callable[[int], NoReturn] = os._exit
    iteration: int = 0  # done
    phase: str = "set-up"
    save_s: float = 0.0
    longest: dict[str, float] = field(default_factory=dict)
    _ran_s: float = 0.0  # seconds of the phase in which the watchdog ran
    _begun: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.time)
    _main: int = field(default_factory=threading.get_ident)

    def start(self) -> None:
        """Start watching the thread that made this object."""
        if self.rank == 0:
            with suppress(OSError):  # files of another user
                self.board.clear()
        threading.Thread(target=self._watch, name="megads-watchdog", daemon=True).start()

    def enter(self, phase: str) -> None:
        """Note that the main thread begins ``phase``; what it was in before is over."""
        took = time.monotonic() - self._begun
        self.longest[self.phase] = max(took, self.longest.get(self.phase, 0.0))
        self.phase, self._begun, self._since, self._ran_s = phase, time.monotonic(), time.time(), 0.0

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
        host = socket.gethostname()
        write_heartbeat(
            self.run_dir,
            Heartbeat(
                self.iteration, self.phase, self._since, time.time(), os.getpid(), host, self.attempt, self.save_s
            ),
        )

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK_S)
            now = time.monotonic()
            if now - last < TICK_S + PAUSE_S:
                self._ran_s += now - last
            last = now
            if self.rank == 0:
                self.beat()
            if self.world_size > 1 and self.phase != END and self._ran_s > self.allowed_s():
                self._end_hang()

    def _end_hang(self) -> None:
        """Leave this rank's position, report unless another rank does, and end the process."""
        mine = self.position()
        self.board.post(self.rank, mine.text())
        time.sleep(COLLECT_S if self.rank == 0 else COLLECT_S + SPOKESMAN_S + 0.02 * min(self.rank, 100))
        if read_outcome(self.run_dir) is None and self.board.claim():
            self._report(mine)
        until = time.monotonic() + COLLECT_S
        while time.monotonic() < until and read_outcome(self.run_dir) is None:
            time.sleep(0.2)
        self.end(1)

    def _report(self, mine: Position) -> None:
        found, hosts = self.board.collect(self.world_size)
        hang = Hang({**found, self.rank: mine}, hosts, self.world_size)
        with suppress(OSError):  # nobody reads any more
            sys.stderr.write(
                f"{hang.report()}megads: MEGADS_TIMEOUT_S={self.timeout_s:g} is the longest wait; "
                "raise it when a step really takes so long\n"
            )
            sys.stderr.flush()
        rank, host = hang.blamed()
        with suppress(MegadsError):  # a full disk; the report is said
            write_outcome(self.run_dir, Outcome(EXIT_FAILED, hang.headline(), self.iteration, "hang", rank, host))
