"""Variables that must not reach new ranks: an earlier launcher's, and this job's that describe something else."""

from __future__ import annotations

import re
from collections.abc import Mapping

from megads.cluster.ranks import EXPLICIT, TOKEN

IN_PLACE = "MEGADS_IN_PLACE"
"""Set to 1 for a rank that no launcher watches: its own exit code is the run's."""

WATCHED = "MEGADS_WATCHED"
"""Set to 1 for ranks whose launcher reads the run's exit code from outcome.json; all others leave with their own."""

OF_RANKS = (*EXPLICIT, IN_PLACE, WATCHED, TOKEN, "MEGADS_NUM_RANKS", "MEGADS_ATTEMPT", "MEGADS_ENDS_AT")
"""What this launcher tells its ranks. Other MEGADS_ variables are a user's."""

ALWAYS_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

# What launchers tell their ranks. A user's shell may hold such variables from an earlier
# job, and every starter hands them on. OMPI_MCA_*, PMIX_MCA_*, PMI_MAX_*, PALS_PMI and the
# like that do not describe a running job are a user's settings and stay.
_OF_LAUNCHERS = re.compile(
    r"MASTER_(ADDR|PORT)|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|LOCAL_SIZE|(GROUP|ROLE|CROSS)_\w+|TORCHELASTIC_\w+|"
    r"OMPI_(COMM_WORLD_\w+|UNIVERSE_SIZE|APP_CTX_NUM_PROCS|NUM_APP_CTX|FIRST_RANKS|FILE_LOCATION|COMMAND|ARGV)|"
    r"OMPI_MCA_(ess\w*|orte_\w+|pmix|initial_wdir|shmem_RUNTIME_QUERY_hint)|"
    r"PMI_(?!MAX_|MMAP_|NO_|DEBUG)\w+|PMIX_(?!MCA_)\w+|"
    r"MPI_LOCALN?RANK(ID|S)|HYDI_CONTROL_FD|MV2_COMM_WORLD_\w+|JSM_NAMESPACE_\w+|"
    r"PALS_(RANKID|NODEID|LOCAL_\w+|APID|APINFO|APNUM|DEPTH|SPOOL_DIR|STARTUP_\w+|FD)|FLUX_TASK_\w+|FLUX_JOB_SIZE"
)

# srun, `srun --pty` and batch scripts describe the process that SLURM itself started.
_OF_A_SLURM_STEP = re.compile(
    r"SLURMD_NODENAME|SLURM_(STEP_\w+|STEPID|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|PTY_\w+|SRUN_COMM_\w+|LAUNCH_NODE_IPADDR|UMASK)"
)

_OPTIONS_OF_SRUN = re.compile(
    r"SLURM_(NTASKS\w*|NPROCS|CPUS_PER_TASK|CPU_BIND\w*|DISTRIBUTION|DIST_\w+|HOSTFILE|EXPORT_ENV|HINT|"
    r"LABELIO|KILL_BAD_EXIT|NO_KILL|WAIT|STDOUTMODE|STDERRMODE|STDINMODE|EXCLUSIVE|EXACT|RELATIVE)|SRUN_CPUS_PER_TASK"
)
"""What sbatch was told and srun would take as its own options, as ``SLURM_NTASKS_PER_NODE``."""


def stale_variables(env: Mapping[str, str], *, under_srun: bool) -> set[str]:
    """Return the names in ``env`` that new ranks must not see.

    Args:
        env: the environment of the launch.
        under_srun: whether srun starts the ranks; what the job said to it is then taken back.
    """
    found = {name for name in env if _OF_LAUNCHERS.fullmatch(name) or _OF_A_SLURM_STEP.fullmatch(name)}
    if under_srun:
        found |= {name for name in env if _OPTIONS_OF_SRUN.fullmatch(name)}
    return found | {name for name in OF_RANKS if name in env}
