"""Start a run as soon as nobody else holds its folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from megads.launch.claims import InUse, wait_for
from megads.launch.job import Job
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.plan_run import prepare as prepare
from megads.launch.plan_run import start
from megads.launch.schedulers.time_left import ends_at, started_at


def start_when_free(job: Job, out: IO[str], begin: Callable[[LaunchPlan], int] | None = None) -> int:
    """Run ``job`` to its end and return its exit code; arguments and errors as of :func:`start`.

    Where ``IF_IN_USE`` says so it waits for the run that holds the folder, and is then prepared again: that run has
    come further, or is complete.
    """
    while True:
        try:
            return start(job, out, begin)
        except InUse as refused:
            ends = ends_at(job.allocation, job.request.env, job.run.launch.walltime, started_at())
            wait_for(job.folder.path, job.run, refused, ends)
            job = prepare(job.request)
