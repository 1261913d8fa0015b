"""One process of a job: makes its part with workers, and as the leader joins the parts and publishes.

:class:`RankRun` knows everything but what is made; ``megads data preprocess`` and ``megads corpus`` add that.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from megads.data.preprocess.input.files import unchanged
from megads.data.preprocess.output import PartFiles, Point, is_complete, join_parts, part_folder, read_point
from megads.data.preprocess.part import NAMED, Stopped, cannot_write, make_part
from megads.data.preprocess.plan import Segment, Work, split_inputs
from megads.data.preprocess.progress import Done, Meter
from megads.data.preprocess.team import Team
from megads.data.preprocess.workers.pool import Failed, Pool
from megads.errors import DataError, MegadsError
from megads.storage.file_lock import FileLock, take_lock
from megads.text.plural import plural

_POLL_S = 0.2
_LOCK_S = 3.0  # what is left of a run that was killed may need a moment to end

W = TypeVar("W", bound=Work)
M = TypeVar("M")
"""What is made: a description of it."""


def run_rank(run: RankRun[W, M]) -> list[M]:
    """Do the work of one process: its own part, and as the leader the output."""
    job, team = run.job, run.team
    with _signals_noted(run.signals):
        try:
            job.work.parent.mkdir(parents=True, exist_ok=True)
            team.begin()
            return run.lead() if team.rank == 0 else run.follow()
        except (MegadsError, OSError, Stopped) as error:
            run.meter.clear()
            reported = cannot_write(job, error) if isinstance(error, OSError) else error
            team.fail(str(reported))
            raise reported from None
        finally:
            run.pool.close()


@contextmanager
def _signals_noted(came: list[int]) -> Iterator[None]:
    """Add the numbers of signals that ask to end to ``came``, instead of ending."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda each, _: came.append(each)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RankRun(ABC, Generic[W, M]):
    """One process of a job. Abstract: what is made.

    Attributes:
        job: what to do.
        team: this process and the others.
        meter: shows how far all are.
        pool: workers, once they are started.
        signals: that came.
        digest: of everything that decides the bytes of the parts, once the workers are started.
        prepares_first: whether the leader prepares before the others do: what they load, it may make.
    """

    prepares_first = False

    def __init__(self, job: W, team: Team, stream: TextIO, *, has_tokens: bool = True):
        total = sum(source.size for source in job.inputs)
        self.job, self.team, self.pool = job, team, Pool()
        self.meter = Meter(stream, total, job.how.log_interval, has_tokens=has_tokens)
        self.signals: list[int] = []
        self.digest = ""
        self._stream = stream
        self._began = time.monotonic()

    @property
    @abstractmethod
    def begin(self) -> Point:
        """The point of a part in which nothing is done."""

    @property
    @abstractmethod
    def locked(self) -> Sequence[Path]:
        """What only one run may make at a time."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """Files that must not exist without ``--overwrite``."""

    @abstractmethod
    def prepare(self, segments: Sequence[Segment], close: Sequence[int]) -> str:
        """Start the workers, which close the descriptors ``close``; return the digest."""

    @abstractmethod
    def first_word(self, files: PartFiles) -> object:
        """Return what the workers get before the first block."""

    @abstractmethod
    def done(self, point: Point) -> Done:
        """Return how far a part at ``point`` is."""

    @abstractmethod
    def complete(self, total: Point) -> None:
        """Leader: finish the joined part, which ends at ``total``, and write the marker."""

    @abstractmethod
    def publish(self) -> tuple[list[M], bool]:
        """Leader: give what is complete its final names; return it, and whether this job made it."""

    def lead(self) -> list[M]:
        """Make a part, join it with those of the others, publish."""
        job = self.job
        with ExitStack() as stack:
            locks = [
                stack.enter_context(_lock(path.parent / f".{path.name}.lock", path, job.option)) for path in self.locked
            ]
            if is_complete(job):
                made, is_same = self.publish()
                if is_same:
                    self.team.end_others()
                    self.report("an earlier call had finished but for renaming the files; they are renamed now")
                    return made
            with suppress(OSError):
                job.work.rmdir()  # empty: all that an earlier call did not live to do
            if not job.how.overwrite and (there := next(filter(os.path.lexists, self.outputs), None)):
                raise DataError(f"{there}: already exists; use another {job.option}, or --overwrite")
            segments = split_inputs(job.inputs, self.team.size)
            self.digest = self.prepare(segments[0], [lock.handle for lock in locks])
            self._drop_stale()
            try:
                return self._make_all(segments[0])
            finally:
                self._clean_up()

    def follow(self) -> list[M]:
        """Make a part for the leader."""
        team = self.team
        segments = split_inputs(self.job.inputs, team.size)[team.rank]
        if not self.prepares_first:
            self.digest = self.prepare(segments, [])
        wanted = team.follow(self.stop_if_asked)
        if not wanted:
            return []
        if self.prepares_first:
            self.digest = self.prepare(segments, [])
        if wanted != self.digest:
            raise DataError(
                f"rank {team.rank} on {socket.gethostname()} sees other input files, tokenizer or options than "
                "rank 0; all ranks need the same"
            )
        point = self._make_part(segments)
        team.finish(self.done(point))
        return []

    def report(self, line: str) -> None:
        """Write a line for the user, once for all ranks."""
        if self.team.rank == 0:
            self.meter.clear()
            self._stream.write(f"megads: {line}\n")
            self._stream.flush()

    def stop_if_asked(self) -> None:
        """Raise Stopped where a signal came."""
        if self.signals:
            raise Stopped(self.signals[0])

    def hear_all(self) -> list[Any]:
        """Return the first message of each worker; raise what one of them failed of."""
        found: dict[int, Any] = {}
        while len(found) < len(self.pool):
            for worker, message in self.pool.receive(_POLL_S):
                if isinstance(message, Failed):
                    raise message.error
                found[worker] = message
            self.stop_if_asked()
        return [found[worker] for worker in range(len(self.pool))]

    def _make_all(self, segments: list[Segment]) -> list[M]:
        job, team = self.job, self.team
        own = self._make_part(segments)
        team.wait(self.done(own), self._check)
        folders = [part_folder(job, part) for part in range(team.size)]
        points = [point for each in folders if (point := read_point(each, self.digest, self.begin))]
        if len(points) < team.size or not all(point.is_done for point in points):
            raise DataError(f"{job.work}: a part of it is not complete; rerun the same command")
        total = _add_points(points)
        self._check(self.done(total))
        for source in job.inputs:
            unchanged(source)
        join_parts(job, points, self.stop_if_asked)
        self.complete(total)
        made, _ = self.publish()
        team.finish(self.done(total))
        self.meter.clear()
        if total.bad:
            names = "; ".join(total.bad_lines[:NAMED])
            self.report(f"skipped {total.bad} bad lines: {names}{'; ...' if total.bad > len(total.bad_lines) else ''}")
        self.report(self.meter.summary(self.done(total)))
        return made

    def _make_part(self, segments: list[Segment]) -> Point:
        with ExitStack() as stack:
            folder = part_folder(self.job, self.team.rank)
            folder.parent.mkdir(exist_ok=True)
            # Of a run whose leader was killed, the others may still be at work.
            stack.enter_context(_lock(folder.with_name(folder.name + ".lock"), folder, self.job.option))
            files = PartFiles(folder, self.digest, self.begin)
            stack.callback(files.close)
            if files.point.documents:
                self.report(f"resuming after {plural(files.point.documents, 'document')} of an earlier call")
            self.team.go(self.digest)
            if self.team.size == 1:  # else the first look finds how far the others are
                self.meter.begin(self.done(files.point))
            for worker in range(len(self.pool)):
                self.pool.send(worker, self.first_word(files))
            make_part(self.job, segments, files, self.pool, self._tick, self.report)
            return files.point

    def _drop_stale(self) -> None:
        """Remove what another command left in the work folder."""
        work = self.job.work
        if work.exists() and read_point(part_folder(self.job, 0), self.digest, self.begin) is None:
            self.report(f"discarding {work}: other options, inputs or tokenizer, or damaged")
            shutil.rmtree(work)

    def _clean_up(self) -> None:
        """Keep work that did not become the output, if it is worth it; report where."""
        work, took = self.job.work, time.monotonic() - self._began
        if not work.exists() or is_complete(self.job) or self.signals:
            return
        if took < self.job.how.keep_s:
            shutil.rmtree(work, ignore_errors=True)
        else:
            self.report(f"finished work is kept in {work}; rerun the same command to resume")

    def _tick(self, point: Point) -> None:
        self._check(self.team.tick(self.done(point)))

    def _check(self, done: Done) -> None:
        """Show how far all are; raise when they have to end."""
        self.stop_if_asked()
        if done.bad > self.job.how.max_bad_lines and self.team.rank == 0:
            raise DataError(f"{done.bad} bad lines in all parts, --max-bad-lines allows {self.job.how.max_bad_lines}")
        if self.team.rank == 0:
            self.meter.show(done)


def _lock(path: Path, what: Path, option: str) -> FileLock:
    """Lock the file ``path`` for this process, which removes it at the end; ``what`` is what it is for."""
    lock = take_lock(path, wait_s=_LOCK_S, temporary=True)
    if lock is None:
        raise DataError(f"{what}: another process is making it; wait, or use another {option}")
    return lock


def _add_points(points: Sequence[Point]) -> Point:
    """Return the end of all parts, joined."""
    counts: dict[str, int] = {}
    for point in points:
        for name, count in point.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Point(
        documents=sum(point.documents for point in points),
        text_bytes=sum(point.text_bytes for point in points),
        used=sum(point.used for point in points),
        bad=sum(point.bad for point in points),
        bad_lines=tuple(line for point in points for line in point.bad_lines),
        num_bytes=tuple(map(sum, zip(*(point.num_bytes for point in points), strict=True))),
        sequences=tuple(map(sum, zip(*(point.sequences for point in points), strict=True))),
        counts=counts,
        is_done=True,
    )


def count_workers(job: Work, segments: Sequence[Segment]) -> int:
    """Return how many workers there is work for."""
    return min(job.how.workers, _most_blocks(job, segments))


def _most_blocks(job: Work, segments: Sequence[Segment]) -> int:
    """Return how many blocks there will be, at most; compressed text may be long."""
    if any(not job.inputs[each.source].is_plain for each in segments):
        return job.how.workers
    return max(1, sum(-(-(each.stop - each.start) // job.how.block_bytes) for each in segments))
