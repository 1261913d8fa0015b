"""SLURM."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from megads.cluster.hosts import parse_hosts, this_host
from megads.cluster.ranks import in_slurm_step
from megads.config.machine_facts import SubmitFacts
from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.schedulers.base import JOB, Question, Scheduler, Submission, parse_clock
from megads.launch.schedulers.batch_job import DIRECTIVE, BatchJob, account, choose_queue, clock, filled, grouped
from megads.text.plural import plural

NO_KILL = "--no-kill"
"""Of sbatch: the job stays when a host fails, and a restart can leave that host out."""


def _hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    # Inside a step that srun started, the step's hosts: `srun -N1 --pty bash` asked for one.
    names = ("SLURM_STEP_NODELIST",) if in_slurm_step(env) else ()
    for name in (*names, "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if env.get(name):
            return parse_hosts(env[name], name)
    count = env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if count != "1":
        raise LaunchError(
            f"SLURM job {env['SLURM_JOB_ID']} has {count} hosts and SLURM_JOB_NODELIST is not set; "
            "start megads in the environment that sbatch or salloc made, or name the hosts in HOSTFILE"
        )
    return (this_host(),)


def _end_of_time_left(answer: str, now: float) -> float:
    """Read ``squeue -o %L``: ``1-02:03:04``, ``2:03:04``, ``3:04``, or UNLIMITED."""
    text = answer.strip()
    if text in ("UNLIMITED", "NOT_SET"):
        return 0.0
    seconds = parse_clock(text)
    if seconds is None:
        raise ValueError(text)
    return now + seconds


def _end_of_job(answer: str, now: float) -> float:
    """Read ``EndTime=2026-01-31T12:00:00`` of ``scontrol show job``, in local time."""
    match = re.search(r"\bEndTime=(\S+)", answer)
    if not match:
        raise ValueError(answer)
    if match[1] in ("Unknown", "None", "NONE"):
        return 0.0
    return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))


def _notes(run: RunConfig, env: Mapping[str, str], hosts: int, spare: int, folder: Path) -> Iterator[str]:
    groups = env.get("SLURM_HET_SIZE", "")
    if groups.isdecimal() and int(groups) > 1:
        yield (
            f"SLURM job {env['SLURM_JOB_ID']} is heterogeneous: of its {groups} groups only group 0 is used, "
            f"{plural(hosts, 'host')}"
        )
    if hosts + spare > 1 and (run.launch.max_restarts or spare) and not _survives(folder):
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


def _addresses(host: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the address that SLURM has for a node whose name is no host's name."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "node", "--oneliner", host],
            env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    for word in done.stdout.split():
        name, _, value = word.partition("=")
        if name in ("NodeAddr", "NodeHostName") and value:
            yield value


def _directives(job: BatchJob, facts: SubmitFacts, machine: str) -> Iterator[str]:
    yield f"--job-name={job.name}"
    yield f"--nodes={job.nodes}"
    if job.ranks_per_host:
        yield f"--ntasks-per-node={job.ranks_per_host}"
    yield f"--time={clock(job.seconds)}"
    if name := account(job, facts, machine):
        yield f"--account={name}"
    if queue := choose_queue(job, facts, machine):
        yield f"{facts.queue_option or '--partition'}={queue}"
    if facts.constraint and not any(word.startswith(("-C", "--constraint")) for word in job.options):
        yield f"--constraint={facts.constraint}"
    if facts.gpus and job.gpus:
        yield filled(facts.gpus, job, "--option")
    # Only to the script's own process, which becomes the launcher: it hands the request on under
    # every launcher. A warning that comes at once would be none.
    if 0 < facts.signal_lead_s <= job.seconds / 2:
        yield f"--signal=B:USR1@{facts.signal_lead_s}"
    if DIRECTIVE.fullmatch(job.output):
        yield f"--output={job.output}/%x-%j.out"
    yield from grouped((*facts.directives, *job.options))


def _after(jobs: Sequence[str]) -> list[str]:
    return ["--parsable", *(f"--dependency=afterany:{job}" for job in jobs)]


SLURM = Scheduler(
    "slurm",
    "SLURM job",
    inside=("SLURM_JOB_ID",),
    job_id=("SLURM_JOB_ID", "SLURM_JOBID"),
    hosts=_hosts,
    launchers=("srun",),
    end_variable="SLURM_JOB_END_TIME",
    questions=lambda job: (
        Question(("squeue", "-h", "-j", job, "-o", "%L"), _end_of_time_left),
        Question(("scontrol", "-o", "show", "job", job), _end_of_job),
    ),
    notes=_notes,
    addresses=_addresses,
    interactive="salloc -N 2",
    submission=Submission(
        "sbatch",
        "SBATCH_ACCOUNT",
        "#SBATCH",
        _directives,
        _after,
        once=("--no-requeue",),
        exclude="--exclude=",
        survives=(NO_KILL,),
    ),
)
