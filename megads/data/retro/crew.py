"""Processes that make the blocks of a project together: ranks that a launcher started, or local ones.

Work is done in stages. Rank 0 finds what is missing and shares it out by turns; a stage ends when all blocks are on
disk. The processes meet in a folder of the project, so any launcher will do.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO, TypeVar

from megads.cluster.parent import end_with
from megads.data.preprocess.progress import Done
from megads.data.preprocess.team import EndedByLeader, Team
from megads.data.preprocess.workers.pool import FORK
from megads.data.retro.blocks import Block
from megads.errors import DataError, MegadsError
from megads.storage.file_lock import take_lock
from megads.storage.reading import parse_json
from megads.text.plural import plural
from megads.text.units import duration

MEETING = ".team"
_LOCK_S = 3.0  # what is left of a run that was killed may need a moment to end
_FIRST_S, _EVERY_S = 5.0, 30.0  # until the first line of progress, and between two
_PATIENCE_S = 3600.0  # without a sign of a process at work: one may load an index of hundreds of GB
_LONGEST_S = 30 * 86400.0  # that rank 0 may work alone between two stages
_RUNS = itertools.count()  # of the crews of this process: every rank makes the same ones
T = TypeVar("T")

Tick = Callable[[int], None]
"""Called with how many rows of a block were made since the last call; it may raise to end."""


class Crew:
    """Process ``rank`` of ``size`` that work on the project ``folder``.

    Attributes:
        report: prints a line on rank 0.
    """

    def __init__(self, rank: int, size: int, folder: Path, stream: TextIO, run: int = 0):
        self.rank, self.size, self.folder, self._stream = rank, size, folder, stream
        self._run, self._stage = run, 0
        self._made = 0

    def report(self, line: str) -> None:
        """Print a line, on rank 0."""
        if self.rank == 0:
            self._stream.write(f"megads: {line}\n")
            self._stream.flush()

    def stage(
        self, what: str, find: Callable[[], Sequence[Block]], make: Callable[[Block, Tick], None], unit: str = "rows"
    ) -> int:
        """Make what ``find``, called on rank 0, says is missing; return the number of blocks. Collective.

        Raises:
            MegadsError: on rank 0 what any of the processes failed of.
            EndedByLeader: on the others.
        """
        team = self._team()
        try:
            team.begin()
            if self.rank == 0:
                return self._lead(team, what, find, make, unit)
            return self._follow(team, make)
        except (MegadsError, OSError) as error:
            team.fail(str(error))
            raise

    def agree(self, find: Callable[[], T]) -> T:
        """Return on every rank what ``find``, called on rank 0, returns: something that JSON holds. Collective.

        Raises:
            MegadsError: on rank 0 what ``find`` raised.
            EndedByLeader: on the others.
        """
        team = self._team()
        try:
            team.begin()
            if self.rank:
                found: T = parse_json(self._followed(team))
            else:
                found = find()
                team.go(json.dumps(found))
                team.wait(Done(), lambda done: None)
            team.finish(Done())
        except (MegadsError, OSError) as error:
            team.fail(str(error))
            raise
        return found

    def alone(self, do: Callable[[], None]) -> None:
        """Call ``do`` on rank 0, while the others wait for the next stage."""
        if self.rank:
            return
        try:
            do()
        except (MegadsError, OSError):
            self.dismiss("failed")
            raise

    def dismiss(self, state: str = "done") -> None:
        """Rank 0: end the others, who wait for the next stage."""
        if self.rank == 0 and self.size > 1:
            team = self._team()
            team.begin()
            team.end_others(state)

    def _team(self) -> Team:
        self._stage += 1
        team = Team(self.rank, self.size, self.folder / MEETING / f"{self._run}-{self._stage}")
        team.patience_s = _LONGEST_S if self.rank else _PATIENCE_S
        return team

    def _lead(
        self,
        team: Team,
        what: str,
        find: Callable[[], Sequence[Block]],
        make: Callable[[Block, Tick], None],
        unit: str,
    ) -> int:
        missing = list(find())
        team.go(json.dumps([[each.start, each.stop, str(each.path)] for each in missing]))
        total = sum(map(len, missing))
        lines = _Lines(what, unit, total, self.report)
        self._make(team, missing[:: self.size], make, lines)
        team.wait(Done(self._made), lambda done: lines.show(done.documents))
        team.finish(Done(self._made))
        if missing:
            self.report(f"{what}: {total:,} {unit} in {plural(len(missing), 'block')}, {duration(lines.seconds)}")
        return len(missing)

    def _follow(self, team: Team, make: Callable[[Block, Tick], None]) -> int:
        found = parse_json(self._followed(team))
        missing = [Block(start, stop, Path(path)) for start, stop, path in found]
        self._make(team, missing[self.rank :: self.size], make, None)
        team.finish(Done(self._made))
        return len(missing)

    def _followed(self, team: Team) -> str:
        """Return what rank 0 says that there is to do."""
        text = team.follow(lambda: None)
        if not text:
            raise EndedByLeader
        team.patience_s = _PATIENCE_S
        return text

    def _make(
        self, team: Team, blocks: Sequence[Block], make: Callable[[Block, Tick], None], lines: _Lines | None
    ) -> None:
        self._made = 0

        def tick(rows: int) -> None:
            self._made += rows
            done = team.tick(Done(self._made))
            if lines:
                lines.show(done.documents)

        for block in blocks:
            make(block, tick)
            tick(0)


class _Lines:
    """Lines of progress now and then."""

    def __init__(self, what: str, unit: str, total: int, report: Callable[[str], None]):
        self._what, self._unit, self._total, self._report = what, unit, total, report
        self._began = time.monotonic()
        self._due = self._began + _FIRST_S

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return time.monotonic() - self._began

    def show(self, done: int) -> None:
        """Print a line if it is time for one."""
        if not 0 < done < self._total or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY_S
        left = self.seconds / done * (self._total - done)
        self._report(
            f"{self._what}: {done:,} of {self._total:,} {self._unit}, {done / self.seconds:,.0f} a second, "
            f"ETA {duration(left)}"
        )


def run_crew(folder: Path, rank: int, size: int, workers: int, stream: TextIO, do: Callable[[Crew], T]) -> T | None:
    """Call ``do`` in every process of a crew; return what it returns on rank 0, None elsewhere.

    Several ``workers`` are forked from this process, which must not have used a library that starts threads and does
    nothing itself; not where a launcher started several ranks: these are the crew.

    Raises:
        MegadsError: what rank 0 raised.
        EndedByLeader: on other ranks of a launcher.
        DataError: a worker was killed.
    """
    run = next(_RUNS)
    if rank == 0:
        lock = take_lock(folder / ".lock", wait_s=_LOCK_S, temporary=True)
        if lock is None:
            raise DataError(f"{folder}: another process works on it; wait for it, or use another --retro-project-dir")
        with lock:
            if size > 1 or workers == 1:
                return _lead(Crew(0, size, folder, stream, run), do)
            return _run_local(folder, workers, stream, do)
    do(Crew(rank, size, folder, stream, run))
    return None


def _lead(crew: Crew, do: Callable[[Crew], T]) -> T:
    found = do(crew)
    # After a failure it stays: ranks that come late read there that it is over. Those that are ahead may use it.
    with suppress(OSError):
        (crew.folder / MEETING).rmdir()
    return found


def _run_local(folder: Path, count: int, stream: TextIO, do: Callable[[Crew], T]) -> T:
    ours, theirs = FORK.Pipe(duplex=False)
    workers = [
        FORK.Process(target=_serve, args=(os.getpid(), Crew(rank, count, folder, stream), do, theirs))
        for rank in range(count)
    ]
    try:
        for worker in workers:
            worker.start()
        theirs.close()
        found: T = _answer(ours, workers)
    finally:
        started = [worker for worker in workers if worker.pid]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join()
        shutil.rmtree(folder / MEETING, ignore_errors=True)
    return found


def _answer(ours: Connection, workers: Sequence[BaseProcess]) -> Any:
    """Wait for what worker 0 returns, or raise what it raised."""
    while not ours.poll(0.1):
        for number, worker in enumerate(workers):
            if worker.exitcode not in (None, 0) and not ours.poll(0.2):
                raise _ended(number, worker.exitcode)
    try:
        problem, found = ours.recv()
    except EOFError:
        workers[0].join()
        raise _ended(0, workers[0].exitcode) from None
    if problem is not None:
        raise problem
    return found


def _ended(number: int, code: int | None) -> DataError:
    reason = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return DataError(f"worker {number} ended: {reason}; rerun the same command to resume")


def _serve(parent: int, crew: Crew, do: Callable[[Crew], Any], answer: Connection) -> None:
    """Be a worker; rank 0 sends what comes out of it."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if crew.rank:
        answer.close()
        with suppress(MegadsError, EndedByLeader):
            do(crew)
        return
    try:
        answer.send((None, do(crew)))
    except (MegadsError, OSError) as error:
        answer.send((error, None))
    sys.stdout.flush()
