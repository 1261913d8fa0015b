"""``megads data preprocess``: in one process, with those of other ranks, or with ``--partitions`` in several."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import numpy as np

from megads.cluster.parent import end_with
from megads.data.formats.dtypes import best_dtype
from megads.data.preprocess.input.ranges import sample_texts
from megads.data.preprocess.output import Made, PartFiles, Point, beginning, complete, publish
from megads.data.preprocess.part import Stopped
from megads.data.preprocess.plan import Job, Segment, check_job, digest_of
from megads.data.preprocess.progress import Done
from megads.data.preprocess.rank import RankRun, count_workers, run_rank
from megads.data.preprocess.team import EndedByLeader, Team
from megads.data.preprocess.workers.pool import FORK, Ready, Start
from megads.data.preprocess.workers.worker import serve
from megads.errors import DataError, MegadsError


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
        return run_rank(_Run(job, Team(rank, size, job.meeting), stream))
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
        return run_rank(_Run(share, Team(0, count, job.meeting, alive=check), stream))
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
        run_rank(_Run(job, Team(rank, job.how.partitions, job.meeting), stream))


class _Run(RankRun[Job, Made]):
    """One process of a job."""

    _ready: Ready
    _dtype = np.dtype("<i4")

    @property
    def begin(self) -> Point:
        """The point of a part in which nothing is done."""
        return beginning(len(self.job.keys))

    @property
    def locked(self) -> Sequence[Path]:
        """What only one run may make at a time."""
        return [self.job.prefix(key) for key in self.job.keys]

    @property
    def outputs(self) -> Sequence[str]:
        """Files that must not exist without ``--overwrite``."""
        return [f"{prefix}{suffix}" for prefix in self.locked for suffix in (".idx", ".bin")]

    def prepare(self, segments: Sequence[Segment], close: Sequence[int]) -> str:
        """Start as many workers as there is work for, and choose the encoder."""
        # Loaded once here and not in each of them; the libraries behind these load themselves later.
        for name in ("megads.data.tokenizers.build", "megads.data.tokenizers.encoders.fastest"):
            importlib.import_module(name)
        job = self.job
        for number in range(count_workers(job, segments)):
            sample = sample_texts(job.inputs, job.keys) if number == 0 else None
            self.pool.start(functools.partial(serve, job=job, sample=sample), close)
        self._ready = ready = self.hear_all()[0]
        self._dtype = best_dtype(ready.vocab_size, job.impl)
        self.report(f"encoder: {ready.reason}")
        return digest_of(job, ready.fingerprint, self.team.size)

    def first_word(self, files: PartFiles) -> Start:
        """Return what the workers get before the first block."""
        return Start(self._ready.encoder, files.bins, self._dtype.str)

    def done(self, point: Point) -> Done:
        """Return how far a part at ``point`` is."""
        tokens = sum(point.num_bytes) // self._dtype.itemsize
        return Done(point.documents, point.text_bytes, tokens, point.used, point.bad)

    def complete(self, total: Point) -> None:
        """Write what is missing next to the joined tokens."""
        complete(self.job, self._ready, self._dtype, total, self.stop_if_asked)

    def publish(self) -> tuple[list[Made], bool]:
        """Give the token files their final names."""
        return publish(self.job)
