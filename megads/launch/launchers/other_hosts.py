"""Launchers that reach other hosts: mpiexec of Open MPI, of MPICH and its kin, and of PALS; srun, Flux and jsrun."""

from __future__ import annotations

import os
import re

from megads.errors import LaunchError
from megads.launch.launchers.call import Call, Launcher, Start, cores_to_set, rank_words
from megads.launch.launchers.cpu_bind import usable_parts
from megads.launch.launchers.plan import ALWAYS_UNSET, stale_variables
from megads.launch.launchers.programs import INTEL, require, version

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


def srun(call: Call) -> Start:
    """Build the srun line. Every number is given: what it does not find, srun takes from the job's variables."""
    program, allocation, cpus = require("srun", call.env), call.allocation, call.cpus
    path, files = call.host_file()
    each = _cpus_per_task(call)
    # Neighbouring ranks on one host, whatever sbatch was told. Left to itself srun may give
    # four ranks on two hosts as 3 and 1.
    spread = (
        ["--distribution=block", f"--ntasks-per-node={allocation.ranks_per_host}"]
        if not allocation.num_ranks
        else [f"--distribution=plane={allocation.ranks_per_host}"]
    )
    argv = [
        program,
        f"--nodes={len(allocation.hosts)}",
        f"--ntasks={allocation.world_size}",
        *spread,
        f"--cpus-per-task={each}",
        f"--nodelist={path}",
        "--kill-on-bad-exit=1",
        "--export=ALL",
    ]
    if 0 < cpus < allocation.ranks_per_host:
        argv.append("--overcommit")
    binding = call.binding
    if binding.cores:
        argv.append(f"--cpu-bind=mask_cpu:{binding.masks()}")
    elif binding.option:
        argv.append(f"--cpu-bind={binding.option}")
    elif binding.free and (allocation.ranks_per_host > 1 or not cpus):  # one rank has all CPUs of its host anyway
        argv.append("--cpu-bind=none")
    return Start((*argv, *call.facts.starter_args, *rank_words(call.command)), {}, files)


def _cpus_per_task(call: Call) -> int:
    """Return what ``-c`` gets: the cores of a rank as the machine's SLURM counts them, else an equal share.

    A job's variables may count hardware threads that its tasks do not get, and srun reserves what
    ``-c`` says: more than there is ends the launch, less leaves cores of the mask outside of the step.
    """
    ranks, threads = call.allocation.ranks_per_host, call.facts.threads_per_core
    if threads and call.binding.cores:
        return call.binding.smallest() * threads
    if threads and call.facts.cores:
        return max(1, sum(map(len, usable_parts(call.facts))) * threads // ranks)
    return call.cpus // ranks or call.binding.smallest() or 1


def flux(call: Call) -> Start:
    """Build the ``flux run`` line. Flux spreads the ranks evenly over whole hosts, in the order of its brokers."""
    allocation, binding = call.allocation, call.binding
    affinity = f"map:{';'.join(binding.cores)}" if binding.cores else binding.option
    argv = [
        require("flux", call.env),
        "run",
        f"--nodes={len(allocation.hosts)}",
        f"--ntasks={allocation.world_size}",
        "--exclusive",
        f"--setopt=cpu-affinity={affinity or ('off' if binding.free else 'per-task')}",
        # Each rank takes the device of its own number.
        "--setopt=gpu-affinity=off",
        "--setopt=exit-on-error",
    ]
    if allocation.spare:
        # The shorter list: there is no option that reads hosts from a file.
        chosen, others = f"hosts:{','.join(allocation.hosts)}", f"not hosts:{','.join(allocation.spare)}"
        argv.append(f"--requires={min(chosen, others, key=len)}")
    return Start((*argv, *call.facts.starter_args, *rank_words(call.command)))


def jsrun(call: Call) -> Start:
    """Build the jsrun line: one resource set that holds a whole host, on the first hosts of the job.

    Raises:
        LaunchError: the ranks do not divide evenly over the hosts.
    """
    allocation = call.allocation
    if allocation.num_ranks and allocation.num_ranks % allocation.ranks_per_host:
        raise LaunchError(
            f"LAUNCH_WITH=jsrun starts the same number of ranks on every host, and {allocation.num_ranks} do "
            f"not divide by {allocation.ranks_per_host}; use a multiple"
        )
    argv = (
        require("jsrun", call.env),
        f"--nrs={len(allocation.hosts)}",
        "--rs_per_host=1",
        f"--tasks_per_rs={allocation.ranks_per_host}",
        "--cpu_per_rs=ALL_CPUS",
        "--gpu_per_rs=ALL_GPUS",
        "--launch_distribution=packed",
        f"--bind={call.binding.option or 'none'}",
        *call.facts.starter_args,
    )
    return Start((*argv, *rank_words(call.command, JSRUN.local_rank, cores_to_set(call))))


OPENMPI = Launcher(
    "openmpi",
    openmpi,
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
    "OMPI_COMM_WORLD_NODE_RANK PMIX_RANK PMIX_NAMESPACE",
)
MPICH = Launcher("mpich", mpich, "PMI_RANK MPI_LOCALRANKID PMI_SIZE PMI_FD MPI_LOCALNRANKS")
PALS = Launcher(
    "pals",
    pals,
    "PALS_RANKID PALS_LOCAL_RANKID PALS_LOCAL_SIZE PMI_RANK PMI_SIZE PMI_LOCAL_RANK PMI_LOCAL_SIZE PMIX_RANK",
)
SRUN = Launcher(
    "srun",
    srun,
    "SLURM_PROCID SLURM_LOCALID SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_TASKS SLURM_NODEID "
    "PMI_RANK PMI_SIZE PMI_FD PMIX_RANK PALS_RANKID",
    job=("a SLURM job", "SLURM_JOB_ID"),
)
FLUX = Launcher(
    "flux",
    flux,
    "FLUX_TASK_RANK FLUX_TASK_LOCAL_ID FLUX_JOB_SIZE PMI_RANK PMI_SIZE PMI_FD",
    job=("a Flux instance", "FLUX_URI"),
)
JSRUN = Launcher(
    "jsrun",
    jsrun,
    "JSM_NAMESPACE_RANK JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_SIZE "
    "OMPI_COMM_WORLD_RANK PMIX_RANK",
    job=("an LSF job", "LSB_JOBID"),
)
