"""A run whose ranks use the staged environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from megads.launch.schedulers.allocation import Allocation

if TYPE_CHECKING:
    from megads.launch.job import Job


def staged(job: Job, allocation: Allocation, write: Callable[[str], object]) -> Job:
    """Return ``job`` with the Python that is staged on all hosts of ``allocation``; unchanged without STAGE_ENV.

    Hosts that have it already are done in a moment. Ranks that the user started have their Python.

    Raises:
        MegadsError: a host failed; the line names it.
    """
    request = job.request
    if not job.run.launch.stage_env or request.started:
        return job
    from megads.launch.staging.stage import stage  # late: a dry run needs none of it

    found = stage(allocation, job.facts, job.run, request.env, python=request.python, root=request.root)
    write(f"staged   {found.line}")
    return replace(job, request=replace(request, python=found.python, staged=found.variables()))
