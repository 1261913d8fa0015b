"""Flux."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from megads.cluster.hosts import parse_hosts
from megads.errors import LaunchError
from megads.launch.schedulers.base import Question, Scheduler


def _hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    command = ["flux", "getattr", "hostlist"]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"FLUX_URI={env['FLUX_URI']}: `{' '.join(command)}` returns no hosts ({error}); load the module of Flux, "
            "or unset FLUX_URI to leave its instance"
        ) from None
    return parse_hosts(done.stdout.strip(), "hostlist of Flux")


def _time_left(answer: str, now: float) -> float:
    """Read the seconds of ``flux job timeleft``; a job without an end says infinity."""
    seconds = float(answer.strip())
    return now + seconds if seconds < 1e9 else 0.0


FLUX = Scheduler(
    "flux",
    "Flux job",
    inside=("FLUX_URI",),
    job_id=("FLUX_ENCLOSING_ID", "FLUX_JOB_ID"),
    hosts=_hosts,
    launchers=("flux",),
    questions=lambda job: (Question(("flux", "job", "timeleft"), _time_left),),
    interactive="flux alloc -N 2",
)
