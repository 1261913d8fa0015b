"""What a job's scheduler does that its user may not expect: lines worth showing before the ranks start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from megads.config.schema import RunConfig
from megads.launch.schedulers.allocation import Allocation
from megads.launch.submit.training import JOB, NO_KILL
from megads.text.plural import plural


def job_notes(run: RunConfig, allocation: Allocation, env: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Yield a line for everything about this job that would otherwise be silent.

    Args:
        run: its ``launch`` section is read.
        allocation: the hosts of the run.
        env: of the launch.
        folder: of the run; says how the job was submitted.
    """
    if allocation.scheduler != "slurm":
        return
    groups = env.get("SLURM_HET_SIZE", "")
    if groups.isdecimal() and int(groups) > 1:
        yield (
            f"SLURM job {allocation.job_id} is heterogeneous: of its {groups} groups only group 0 is used, "
            f"{plural(len(allocation.hosts), 'host')}"
        )
    hosts = len(allocation.hosts) + len(allocation.spare)
    if hosts > 1 and (run.launch.max_restarts or allocation.spare) and not _survives(folder):
        asked = "MAX_RESTARTS" if run.launch.max_restarts else "a spare host"
        yield (
            f"{asked} helps after a failed host only if the job was submitted with {NO_KILL}: SLURM ends the "
            "whole job otherwise (sbatch --no-kill; megads train --submit adds it)"
        )


def _survives(folder: Path) -> bool:
    """Return whether ``megads train --submit`` wrote this run's job with the option."""
    try:
        return any(line.split()[1:] == [NO_KILL] for line in (folder / JOB).read_text("utf8").splitlines()[:50])
    except (OSError, UnicodeDecodeError):
        return False
