"""The mpiexec of Open MPI, of MPICH and what descends from it, and of PALS."""

from __future__ import annotations

import os
import re

from megads.launch.starters.call import Call, Start, Starter, cores_to_set, rank_words
from megads.launch.starters.old_variables import ALWAYS_UNSET, stale_variables
from megads.launch.starters.programs import INTEL, require, version

# What describes the process that launches and not the ranks, and what Open MPI sets itself.
_NOT_FORWARDED = re.compile(
    r"PWD|OLDPWD|SHLVL|_|HOST|HOSTNAME|DISPLAY|XAUTHORITY|TERM\w*|SSH_\w+|OMPI_\w+|PMIX_\w+|PRTE_\w+|"
    r"SLURM_\w+|SLURMD_\w+|SRUN_\w+|PBS_JOBCOOKIE"
)
_A_NAME = re.compile(r"[A-Za-z_]\w*")


def openmpi(call: Call) -> Start:
    """Build the line for Open MPI 4 and 5: both know these options, though 5 has newer words for some.

    The daemons that it starts on other hosts have an environment of their own, so every
    variable is named.
    """
    program = require("openmpi", call.env)
    size = call.allocation.world_size
    # A container gives root; the variables, unlike the flag, do not change the command.
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    argv = [program, "-n", str(size), "--oversubscribe"]
    files: dict[str, str] = {}
    if not call.local:
        path, files = call.host_file(f"{{host}} slots={call.allocation.ranks_per_host}")
        argv += ["--hostfile", path, "--map-by", f"ppr:{call.allocation.ranks_per_host}:node"]
        removed = stale_variables(call.env, under_srun=False) | {*ALWAYS_UNSET}
        names = sorted({*call.env} - removed | {*call.added})
        argv += [
            word
            for name in names
            if _A_NAME.fullmatch(name) and not _NOT_FORWARDED.fullmatch(name)
            for word in ("-x", name)
        ]
    argv += ["--bind-to", call.binding.option or "none", *call.facts.starter_args]
    return Start((*argv, *rank_words(call.command, OPENMPI.local_rank, cores_to_set(call))), as_root, files)


def mpich(call: Call) -> Start:
    """Build the line for Hydra: MPICH's, Intel MPI's and MVAPICH's. It hands on the whole environment."""
    program = require("mpich", call.env)
    argv = [program, "-n", str(call.allocation.world_size)]
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    if not call.local:
        path, files = call.host_file()
        argv += ["-f", path, "-ppn", str(call.allocation.ranks_per_host)]
    if INTEL in version(program, call.env):
        env = _intel(call)
    elif call.binding.option:
        argv += ["-bind-to", call.binding.option]
    argv += call.facts.starter_args
    return Start((*argv, *rank_words(call.command, MPICH.local_rank, cores_to_set(call))), env, files)


def _intel(call: Call) -> dict[str, str]:
    """Return Intel MPI's words for what MPICH has options for."""
    # Inside a job it would otherwise take the ranks on a host from the scheduler.
    env = {} if call.local else {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "0"}
    if call.binding.option:
        env["I_MPI_PIN_DOMAIN"] = call.binding.option
    elif call.binding.cores or call.binding.free:
        env["I_MPI_PIN"] = "0"
    return env


def pals(call: Call) -> Start:
    """Build the line for PALS (HPE), which reads a plain list of hosts and binds by lists of cores."""
    program, allocation = require("pals", call.env), call.allocation
    path, files = call.host_file()
    binding = call.binding
    words = f"list:{':'.join(binding.cores)}" if binding.cores else binding.option or "none"
    argv = (
        program,
        f"--np={allocation.world_size}",
        f"--ppn={allocation.ranks_per_host}",
        f"--hostfile={path}",
        "--genvall",
        f"--cpu-bind={words}",
        *call.facts.starter_args,
    )
    return Start((*argv, *rank_words(call.command)), {}, files)


OPENMPI = Starter(
    "openmpi",
    openmpi,
    rank="OMPI_COMM_WORLD_RANK",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    others=(
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK"),
        *("PMIX_RANK", "PMIX_NAMESPACE"),
    ),
)
MPICH = Starter(
    "mpich",
    mpich,
    rank="PMI_RANK",
    local_rank="MPI_LOCALRANKID",
    others=("PMI_SIZE", "PMI_FD", "MPI_LOCALNRANKS"),
)
PALS = Starter(
    "pals",
    pals,
    rank="PALS_RANKID",
    local_rank="PALS_LOCAL_RANKID",
    others=("PALS_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMIX_RANK"),
)
