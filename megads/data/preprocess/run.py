"""``megads data preprocess``: in one process, with those of other ranks, or with ``--partitions`` in several."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np

from megads.cluster.parent import end_with
from megads.data.formats.dtypes import best_dtype
from megads.data.preprocess.input.files import unchanged
from megads.data.preprocess.input.ranges import sample_texts
from megads.data.preprocess.output import (
    Made,
    PartFiles,
    Point,
    complete,
    is_complete,
    join_parts,
    part_folder,
    publish,
    read_point,
)
from megads.data.preprocess.part import NAMED, Stopped, cannot_write, make_part
from megads.data.preprocess.plan import Job, Segment, check_job, digest_of, split_inputs
from megads.data.preprocess.progress import Done, Meter
from megads.data.preprocess.team import EndedByLeader, Team
from megads.data.preprocess.workers.pool import FORK, Failed, Pool, Ready, Start
from megads.data.preprocess.workers.worker import serve
from megads.errors import DataError, MegadsError
from megads.storage.file_lock import FileLock, take_lock
from megads.text.plural import plural

_POLL_S = 0.2
_LOCK_S = 3.0  # what is left of a run that was killed may need a moment to end


def preprocess(job: Job, *, rank: int = 0, size: int = 1, stream: TextIO) -> list[Made]:
    """Make the token files of ``job``, together with the processes of the other ranks.

    Must be called before this process has used a library that starts threads: it forks.

    Args:
        job: what to do.
        rank: of this process.
        size: number of processes, all with the same job, on hosts that see the same files.
        stream: for progress and notes.

    Returns:
        What was made; nothing on ranks other than 0.

    Raises:
        MegadsError: nothing is then under the final names. What cost more than a moment is kept
            where the same command resumes it.
        Stopped: by a signal; likewise.
        EndedByLeader: another process failed, and the leader reports why.
    """
    check_job(job)
    if size > 1 or job.how.partitions == 1:
        return _run_rank(job, Team(rank, size, job.meeting), stream)
    return _run_partitions(job, stream)


def _run_partitions(job: Job, stream: TextIO) -> list[Made]:
    """Make the parts in forked processes that share the workers, this one being the leader."""
    count = job.how.partitions
    share = replace(job, how=replace(job.how, workers=max(1, job.how.workers // count)))
    parts = {rank: FORK.Process(target=_run_part, args=(os.getpid(), share, rank, stream)) for rank in range(1, count)}

    def check() -> None:
        for rank, process in parts.items():
            if (code := process.exitcode or 0) < 0:
                name = signal.Signals(-code).name
                raise DataError(f"part {rank} was ended by {name}; rerun the same command to resume")

    try:
        for process in parts.values():
            process.start()
        return _run_rank(share, Team(0, count, job.meeting, alive=check), stream)
    finally:
        started = [process for process in parts.values() if process.pid]
        for process in started:
            process.terminate()
        for process in started:
            process.join()
        shutil.rmtree(job.meeting, ignore_errors=True)


def _run_part(leader: int, job: Job, rank: int, stream: TextIO) -> None:
    """Do the work of a rank; why it failed is reported by the leader."""
    end_with(leader)
    with suppress(MegadsError, OSError, Stopped, EndedByLeader):
        _run_rank(job, Team(rank, job.how.partitions, job.meeting), stream)


def _run_rank(job: Job, team: Team, stream: TextIO) -> list[Made]:
    """Do the work of one process: its own part, and as the leader the token files."""
    total = sum(source.size for source in job.inputs)
    with _signals_noted() as signals:
        run = _Run(job, team, stream, Meter(stream, total, job.how.log_interval), signals)
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
def _signals_noted() -> Iterator[list[int]]:
    """Yield a list to which the numbers of signals that ask to end are added, instead of ending."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda each, _: came.append(each)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One process of a job."""

    def __init__(self, job: Job, team: Team, stream: TextIO, meter: Meter, signals: list[int]):
        self.job, self.team, self.meter, self.pool = job, team, meter, Pool()
        self._stream, self._signals = stream, signals
        self._began = time.monotonic()
        self._dtype = np.dtype("<i4")

    def lead(self) -> list[Made]:
        """Make a part, join it with those of the others, publish."""
        job = self.job
        with ExitStack() as stack:
            prefixes = [job.prefix(key) for key in job.keys]
            locks = [stack.enter_context(_lock(each.parent / f".{each.name}.lock", each)) for each in prefixes]
            if is_complete(job):
                made, is_same = publish(job)
                if is_same:
                    self.team.end_others()
                    self._report("an earlier call had finished but for renaming the files; they are renamed now")
                    return made
            with suppress(OSError):
                job.work.rmdir()  # empty: all that an earlier call did not live to do
            outputs = [f"{prefix}{suffix}" for prefix in prefixes for suffix in (".idx", ".bin")]
            if not job.how.overwrite and (there := next(filter(os.path.lexists, outputs), None)):
                raise DataError(f"{there}: already exists; use another --output-prefix, or --overwrite")
            segments = split_inputs(job.inputs, self.team.size)
            ready = self._start_workers(segments[0], [lock.handle for lock in locks])
            self._report(f"encoder: {ready.reason}")
            digest = digest_of(job, ready.fingerprint, self.team.size)
            self._drop_stale(digest)
            try:
                return self._make_all(segments[0], ready, digest)
            finally:
                self._clean_up()

    def follow(self) -> list[Made]:
        """Make a part for the leader."""
        job, team = self.job, self.team
        segments = split_inputs(job.inputs, team.size)[team.rank]
        ready = self._start_workers(segments, [])
        wanted = team.follow(self._stop_if_asked)
        if not wanted:
            return []
        digest = digest_of(job, ready.fingerprint, team.size)
        if wanted != digest:
            raise DataError(
                f"rank {team.rank} on {socket.gethostname()} sees other input files, tokenizer or options than "
                "rank 0; all ranks need the same"
            )
        point = self._make_part(segments, digest)
        team.finish(self._done(point))
        return []

    def _make_all(self, segments: list[Segment], ready: Ready, digest: str) -> list[Made]:
        job, team = self.job, self.team
        own = self._make_part(segments, digest)
        team.wait(self._done(own), self._check)
        folders = [part_folder(job, part) for part in range(team.size)]
        points = [point for each in folders if (point := read_point(each, digest, len(job.keys)))]
        if len(points) < team.size or not all(point.is_done for point in points):
            raise DataError(f"{job.work}: a part of it is not complete; rerun the same command")
        total = _add_points(points)
        self._check(self._done(total))
        for source in job.inputs:
            unchanged(source)
        join_parts(job, points, self._stop_if_asked)
        complete(job, ready, self._dtype, total, self._stop_if_asked)
        made, _ = publish(job)
        team.finish(self._done(total))
        self.meter.clear()
        if total.bad:
            names = "; ".join(total.bad_lines[:NAMED])
            self._report(f"skipped {total.bad} bad lines: {names}{'; ...' if total.bad > len(total.bad_lines) else ''}")
        self._report(self.meter.summary(self._done(total)))
        return made

    def _make_part(self, segments: list[Segment], digest: str) -> Point:
        with ExitStack() as stack:
            folder = part_folder(self.job, self.team.rank)
            folder.parent.mkdir(exist_ok=True)
            # Of a run whose leader was killed, the others may still be at work.
            stack.enter_context(_lock(folder.with_name(folder.name + ".lock"), folder))
            files = PartFiles(folder, digest, len(self.job.keys))
            stack.callback(files.close)
            if files.point.documents:
                self._report(f"resuming after {plural(files.point.documents, 'document')} of an earlier call")
            self.team.go(digest)
            if self.team.size == 1:  # else the first look finds how far the others are
                self.meter.begin(self._done(files.point))
            for worker in range(len(self.pool)):
                self.pool.send(worker, Start(self._encoder, files.bins, self._dtype.str))
            make_part(self.job, segments, files, self.pool, self._tick, self._report)
            return files.point

    def _start_workers(self, segments: list[Segment], close: Sequence[int]) -> Ready:
        """Start as many workers as there is work for; return what they report about the tokenizer."""
        # Loaded once here and not in each of them; the libraries behind these load themselves later.
        for name in ("megads.data.tokenizers.build", "megads.data.tokenizers.encoders.fastest"):
            importlib.import_module(name)
        job = self.job
        for number in range(min(job.how.workers, _most_blocks(job, segments))):
            sample = sample_texts(job.inputs, job.keys) if number == 0 else None
            self.pool.start(functools.partial(serve, job=job, sample=sample), close)
        found: dict[int, Ready] = {}
        while len(found) < len(self.pool):
            for worker, message in self.pool.receive(_POLL_S):
                if isinstance(message, Failed):
                    raise message.error
                found[worker] = message
            self._stop_if_asked()
        ready = found[0]
        self._encoder, self._dtype = ready.encoder, best_dtype(ready.vocab_size, job.impl)
        return ready

    def _drop_stale(self, digest: str) -> None:
        """Remove what another command left in the work folder."""
        work = self.job.work
        if work.exists() and read_point(part_folder(self.job, 0), digest, len(self.job.keys)) is None:
            self._report(f"discarding {work}: other options, inputs or tokenizer, or damaged")
            shutil.rmtree(work)

    def _clean_up(self) -> None:
        """Keep work that did not become token files, if it is worth it; report where."""
        work, took = self.job.work, time.monotonic() - self._began
        if not work.exists() or is_complete(self.job) or self._signals:
            return
        if took < self.job.how.keep_s:
            shutil.rmtree(work, ignore_errors=True)
        else:
            self._report(f"finished work is kept in {work}; rerun the same command to resume")

    def _tick(self, point: Point) -> None:
        self._check(self.team.tick(self._done(point)))

    def _check(self, done: Done) -> None:
        """Show how far all are; raise when they have to end."""
        self._stop_if_asked()
        if done.bad > self.job.how.max_bad_lines and self.team.rank == 0:
            raise DataError(f"{done.bad} bad lines in all parts, --max-bad-lines allows {self.job.how.max_bad_lines}")
        if self.team.rank == 0:
            self.meter.show(done)

    def _done(self, point: Point) -> Done:
        tokens = sum(point.num_bytes) // self._dtype.itemsize
        return Done(point.documents, point.text_bytes, tokens, point.used, point.bad)

    def _report(self, line: str) -> None:
        if self.team.rank == 0:
            self.meter.clear()
            self._stream.write(f"megads: {line}\n")
            self._stream.flush()

    def _stop_if_asked(self) -> None:
        if self._signals:
            raise Stopped(self._signals[0])


def _lock(path: Path, what: Path) -> FileLock:
    """Lock the file ``path`` for this process, which removes it at the end; ``what`` is what it is for."""
    lock = take_lock(path, wait_s=_LOCK_S, temporary=True)
    if lock is None:
        raise DataError(f"{what}: another process is making it; wait, or use another --output-prefix")
    return lock


def _add_points(points: Sequence[Point]) -> Point:
    """Return the end of all parts, joined."""
    return Point(
        documents=sum(point.documents for point in points),
        text_bytes=sum(point.text_bytes for point in points),
        used=sum(point.used for point in points),
        bad=sum(point.bad for point in points),
        bad_lines=tuple(line for point in points for line in point.bad_lines),
        num_bytes=tuple(map(sum, zip(*(point.num_bytes for point in points), strict=True))),
        sequences=tuple(map(sum, zip(*(point.sequences for point in points), strict=True))),
        is_done=True,
    )


def _most_blocks(job: Job, segments: Sequence[Segment]) -> int:
    """Return how many blocks there will be, at most; compressed text may be long."""
    if any(not job.inputs[each.source].is_plain for each in segments):
        return job.how.workers
    return max(1, sum(-(-(each.stop - each.start) // job.how.block_bytes) for each in segments))
