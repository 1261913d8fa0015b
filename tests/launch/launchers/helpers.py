"""Launchers that are scripts, and the plans of launches with them."""

from __future__ import annotations

import sys
from pathlib import Path

from megads.cluster.hosts import this_host
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.launch.launchers.command import plan_launch
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation

RANK = ("python", "rank.py", "a b")


DEAF = ("sh", "-c", 'trap "" USR1; exec "$@"', "sh")


SAY = {
    "openmpi": "mpirun (Open MPI) 5.0.1",
    "mpich": "HYDRA build details:",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.9",
    "pals": "mpiexec version 1.4.0 (PALS)",
}


JOB = ("SLURM_JOB_ID", "FLUX_URI", "LSB_JOBID")


UNKNOWN = Facts()


TWO = Allocation("none", ("n1", "n2"), 4, "7")


def plan(
    env: dict[str, str], folder: Path, allocation: Allocation, facts: Facts = UNKNOWN, **launch: object
) -> LaunchPlan:
    run = RunConfig(launch=LaunchConfig(**launch))
    return plan_launch(run, allocation, RANK, env, facts=facts, folder=folder / "run", python="py")


def shown(made: LaunchPlan, folder: Path) -> str:
    """Return the command up to the rank's own words, with the folder skipped."""
    words = list(made.argv)
    assert words[-3:] == list(RANK)
    return " ".join(words[:-3]).replace(f"{folder}/", "").replace(" ".join(DEAF), "DEAF")


FRONTIER = Facts(
    starter="srun",
    starter_args=("--gpus-per-task=1", "--gpu-bind=closest"),
    agent_args=("--gpus-per-task=4",),
    cores=("0-3", "4-7", "8-11", "12-15"),
    reserved_cores="0,4,8,12",
    agent_cores=("12-15", "8-11", "0-3", "4-7"),
    threads_per_core=1,
)


def many(count: int) -> Allocation:
    return Allocation("slurm", tuple(f"frontier{number:05}" for number in range(count)), 8, "7")


COMMAND = [sys.executable, "-c", "pass"]


def plan_here(starter: str, ranks: int, env: dict[str, str] | None = None) -> LaunchPlan:
    run = RunConfig(launch=LaunchConfig(launch_with=starter))
    return plan_launch(run, Allocation("none", (this_host(),), ranks), COMMAND, {"MEGADS_DEVICE": "cpu", **(env or {})})


def fake_mpi(folder, **versions: str) -> dict[str, str]:
    """Make programs that answer --version and return a PATH with nothing else."""
    for name, text in versions.items():
        program = folder / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
    return {"PATH": str(folder)}
