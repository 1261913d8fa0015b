"""What a job script says, and handing it to PBS or SLURM."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megads.config.machine_facts import Facts, SubmitFacts
from megads.config.sources.presets import read_machine
from megads.errors import LaunchError
from megads.launch.schedulers.allocation import SCHEDULERS
from megads.launch.schedulers.base import Submission
from megads.launch.schedulers.batch_job import BatchJob

PROGRAMS = {row.name: row.submission.program for row in SCHEDULERS.values() if row.submission}
"""By scheduler, of those that jobs are submitted to."""


@dataclass(frozen=True)
class JobOptions:
    """What the command line says of the job itself."""

    nodes: int = 0  # 0: NHOSTS, or 1
    account: str = ""
    queue: str = ""
    chunk: str = ""
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # NAME or NAME=VALUE, handed to the job
    chain: int = 1


@dataclass(frozen=True)
class Place:
    """Where jobs go: a scheduler, and what the machine's jobs say."""

    machine: str
    scheduler: str  # "pbs" or "slurm"
    submit: SubmitFacts
    facts: Facts = field(default_factory=Facts)

    @property
    def submission(self) -> Submission:
        """How jobs are submitted there."""
        found = SCHEDULERS[self.scheduler].submission
        assert found is not None, f"{self.scheduler} takes no jobs"
        return found


def find_place(machine: str, root: Path, env: Mapping[str, str]) -> Place:
    """Return where jobs of ``machine`` go; for a machine without scheduler by which of sbatch and qsub is on PATH.

    Raises:
        LaunchError: neither is, or the machine's scheduler takes no jobs from here.
    """
    facts = read_machine(machine, root).facts
    if facts.scheduler in PROGRAMS:
        return Place(machine, facts.scheduler, facts.submit, facts)
    scheduler = scheduler_on_path(env)
    if facts.scheduler != "none" or not scheduler:
        known = "neither sbatch nor qsub is on PATH" if facts.scheduler == "none" else f"it has {facts.scheduler}"
        raise LaunchError(
            f"machine {machine}: {known}, and jobs are submitted to PBS and SLURM only; go to a login node of the "
            "cluster, or name its machine with MACHINE for --dry-run"
        )
    return Place(machine, scheduler, read_machine(scheduler, root).facts.submit, facts)


def scheduler_on_path(env: Mapping[str, str]) -> str:
    """Return the scheduler whose program is on PATH, or "".

    SLURM's wrappers for users of PBS have a qsub too, so where both programs are, qsub counts
    when it says that it is PBS.
    """
    found = [name for name, program in PROGRAMS.items() if shutil.which(program, path=env.get("PATH", ""))]
    if len(found) < 2:
        return "".join(found)
    try:
        said = subprocess.run(["qsub", "--version"], env=dict(env), capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return "slurm"
    return "pbs" if "pbs_version" in said.stdout + said.stderr else "slurm"


def refuse_host_file(path: str) -> None:
    """Refuse a list of hosts that was there before the job: its hosts are known when it starts.

    Raises:
        LaunchError: ``path`` is one.
    """
    if path:
        raise LaunchError(
            f"HOSTFILE={path}: the scheduler chooses the hosts of a job; unset HOSTFILE and say how many with --nodes"
        )


def job_of(
    options: JobOptions, place: Place, env: Mapping[str, str], *, more: tuple[str, ...] = (), **rest: Any
) -> BatchJob:
    """Return the job that ``options`` ask for at ``place``.

    Args:
        env: of this command; the scheduler's own variable gives an account, too.
        more: options of the scheduler besides the user's.
    """
    return BatchJob(
        account=options.account or env.get(place.submission.account, ""),
        queue=options.queue,
        chunk=options.chunk,
        options=(*more, *options.options),
        jobs=options.chain,
        gpus=not on_cpu(place, env),
        **rest,
    )


def on_cpu(place: Place, env: Mapping[str, str]) -> bool:
    """Return whether the job needs no accelerators."""
    return env.get("MEGADS_DEVICE") == "cpu" or (place.facts.device == "cpu" and not env.get("MEGADS_DEVICE"))


def job_text(job: BatchJob, place: Place, body: Sequence[str]) -> str:
    """Return the job script that runs the lines ``body``.

    Raises:
        ConfigError: a value that would be more than one word in a directive.
        LaunchError: account, or a queue that takes the job, is missing.
    """
    how = place.submission
    lines = [f"{how.mark} {line}" for line in how.directives(job, place.submit, place.machine)]
    # A login shell, so that there is a `module` command.
    return "\n".join(["#!/bin/bash -l", *lines, "set -e", *body]) + "\n"


def job_name(name: str) -> str:
    """Return a name that PBS and SLURM take, which begins with a letter."""
    return "megads-" + (re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "job")[:60]


def send(
    text: str,
    scheduler: str,
    env: Mapping[str, str],
    *,
    chain: int = 1,
    keep: Callable[[Sequence[str]], None] = lambda jobs: None,
) -> list[str]:
    """Submit a job script ``chain`` times, each job after the end of the one before; return the job ids.

    Args:
        keep: is given the ids so far after every submission, so that none is lost when a later one fails.

    Raises:
        LaunchError: the scheduler's program is missing or refuses; it names the jobs submitted before.
    """
    how = SCHEDULERS[scheduler].submission
    assert how is not None, f"{scheduler} takes no jobs"
    if not shutil.which(how.program, path=env.get("PATH", "")):
        raise LaunchError(f"{how.program} is not on PATH; submit from a login node, or see the job with --dry-run")
    jobs: list[str] = []
    for _ in range(chain):
        argv = [how.program, *how.after(jobs[-1:])]
        done = subprocess.run(argv, input=text, env=dict(env), capture_output=True, text=True)
        words = done.stdout.split()
        if done.returncode or not words:
            said = " ".join((done.stderr.strip() or done.stdout.strip() or "no job id").split("\n"))
            before = f"; submitted before: {' '.join(jobs)}" if jobs else ""
            raise LaunchError(f"{shlex.join(argv)}: {said}{before}")
        # sbatch --parsable gives ID;CLUSTER.
        jobs.append(words[-1].partition(";")[0])
        keep(jobs)
    return jobs
