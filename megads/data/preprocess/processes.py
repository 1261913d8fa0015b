"""``megads data preprocess``: in one process, with those of other ranks, or with ``--partitions`` in several."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TextIO

from megads.cluster.parent import end_with
from megads.data.preprocess.output.publish import Made
from megads.data.preprocess.plan import Job, check_job
from megads.data.preprocess.run import meeting, run_rank
from megads.data.preprocess.team import Team
from megads.errors import DataError


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
        Silent: another process failed and says why.
    """
    check_job(job)
    if size > 1 or job.how.partitions == 1:
        return run_rank(job, Team(rank, size, meeting(job)), stream)
    return run_partitions(job, stream)


def run_partitions(job: Job, stream: TextIO) -> list[Made]:
    """Make the parts in forked processes that share the workers, this one being the leader; see ``preprocess``."""
    count = job.how.partitions
    share = replace(job, how=replace(job.how, workers=max(1, job.how.workers // count)))
    sys.stdout.flush()
    sys.stderr.flush()
    leader = os.getpid()
    children: dict[int, int] = {}
    for rank in range(1, count):
        pid = os.fork()
        if pid == 0:
            end_with(leader)
            _run_child(share, Team(rank, count, meeting(job)), stream)
        children[pid] = rank
    try:
        return run_rank(share, Team(0, count, meeting(job), alive=lambda: _check(children)), stream)
    finally:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in list(children):
            os.waitpid(pid, 0)
        shutil.rmtree(meeting(job), ignore_errors=True)


def _run_child(job: Job, team: Team, stream: TextIO) -> None:
    """Do the work of a rank; what it fails of, the leader tells."""
    status = 1
    try:
        run_rank(job, team, stream)
        status = 0
    finally:
        os._exit(status)


def _check(children: dict[int, int]) -> None:
    """Raise if a part was ended from outside."""
    for pid, rank in list(children.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            del children[pid]
            if os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                raise DataError(f"part {rank} was ended by {name}; rerun the same command to resume")
