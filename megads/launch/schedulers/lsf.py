"""LSF."""

from __future__ import annotations

from megads.cluster.hosts import lsf_hosts
from megads.launch.schedulers.base import Question, Scheduler


def _time_left(answer: str, now: float) -> float:
    """Read ``bjobs -o time_left``: ``11:12 L`` in hours and minutes, ``-`` for a job without an end."""
    text = answer.strip()
    if text in ("", "-"):
        return 0.0
    hours, minutes = text.split()[0].split(":")
    return now + int(hours) * 3600 + int(minutes) * 60


LSF = Scheduler(
    "lsf",
    "LSF job",
    inside=("LSB_JOBID",),
    job_id=("LSB_JOBID",),
    hosts=lsf_hosts,
    launchers=("jsrun",),
    questions=lambda job: (Question(("bjobs", "-noheader", "-o", "time_left", job), _time_left),),
    interactive="bsub -Is -nnodes 2",
)
