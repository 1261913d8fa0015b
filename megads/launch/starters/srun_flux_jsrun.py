"""The starters that come with a scheduler: srun, Flux and jsrun."""

from __future__ import annotations

from megads.errors import LaunchError
from megads.launch.starters.call import Call, Start, Starter, cores_to_set, rank_words
from megads.launch.starters.core_lists import usable_cores
from megads.launch.starters.programs import require


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
        return max(1, len(usable_cores(call.facts)) * threads // ranks)
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
            "not divide by "
            f"{allocation.ranks_per_host}; use a multiple"
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


SRUN = Starter(
    "srun",
    srun,
    job=("a SLURM job", "SLURM_JOB_ID"),
    rank="SLURM_PROCID",
    local_rank="SLURM_LOCALID",
    others=(
        *("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID"),
        *("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMIX_RANK", "PALS_RANKID"),
    ),
)
FLUX = Starter(
    "flux",
    flux,
    job=("a Flux instance", "FLUX_URI"),
    rank="FLUX_TASK_RANK",
    local_rank="FLUX_TASK_LOCAL_ID",
    others=("FLUX_JOB_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_FD"),
)
JSRUN = Starter(
    "jsrun",
    jsrun,
    job=("an LSF job", "LSB_JOBID"),
    rank="JSM_NAMESPACE_RANK",
    local_rank="JSM_NAMESPACE_LOCAL_RANK",
    others=("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
)
