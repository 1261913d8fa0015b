"""How ranks are started: one function per starter builds its command and runs nothing."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from megads.cluster.machine import count_accelerators, count_cores
from megads.cluster.ranks import EXPLICIT
from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.plan import LaunchPlan
from megads.launch.scheduler import Allocation

IN_PLACE = "MEGADS_IN_PLACE"
"""Set to 1 for a rank that no launcher watches: its own exit code is the run's."""

# What launchers tell their ranks. A user's shell may hold such variables from an earlier
# job, and every starter hands them on. OMPI_MCA_* and PMIX_MCA_* that do not describe a
# running job are a user's settings and stay.
_STALE = re.compile(
    r"MASTER_(ADDR|PORT)|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|(GROUP|ROLE)_\w+|TORCHELASTIC_\w+|"
    r"OMPI_(COMM_WORLD_\w+|UNIVERSE_SIZE|APP_CTX_NUM_PROCS|NUM_APP_CTX|FIRST_RANKS|FILE_LOCATION|COMMAND|ARGV)|"
    r"OMPI_MCA_(ess\w*|orte_\w+|pmix|initial_wdir|shmem_RUNTIME_QUERY_hint)|PMI_\w+|PMIX_(?!MCA_)\w+|"
    r"MPI_LOCALN?RANK(ID|S)|HYDI_CONTROL_FD|MV2_COMM_WORLD_\w+|JSM_NAMESPACE_\w+|PALS_\w+|FLUX_TASK_\w+"
)
_ALWAYS_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def plan_launch(run: RunConfig, allocation: Allocation, command: Sequence[str], env: Mapping[str, str]) -> LaunchPlan:
    """Return the plan that runs ``command`` as every rank of ``allocation``.

    The starter is ``launch.launch_with``; ``auto`` is the process itself for one rank and
    torchrun for several.

    Args:
        run: its ``launch`` section is read.
        allocation: one host.
        command: of a rank, beginning with the Python to use.
        env: the environment the launch happens in.

    Raises:
        LaunchError: when the starter is not installed or cannot start so many ranks.
    """
    wanted = run.launch.launch_with
    if wanted == "auto":
        wanted = "direct" if allocation.world_size == 1 else "torchrun"
    added = _common_env(allocation, env)
    stale = {name for name in env if _STALE.fullmatch(name)} | {*_ALWAYS_UNSET, *EXPLICIT, IN_PLACE}
    argv, extra = STARTERS[wanted](allocation, command, added, env)
    added |= extra
    unset = tuple(sorted(name for name in stale - added.keys() if name in env or name in _ALWAYS_UNSET))
    return LaunchPlan(argv, added, unset, in_place=wanted == "direct", forwards_signals=wanted != "torchrun")


def _common_env(allocation: Allocation, env: Mapping[str, str]) -> dict[str, str]:
    """Return what every starter sets for the ranks."""
    added = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
    if not env.get("OMP_NUM_THREADS"):
        added["OMP_NUM_THREADS"] = str(max(1, count_cores() // allocation.ranks_per_host))
    if not env.get("DS_ACCELERATOR") and not count_accelerators(env):
        added["DS_ACCELERATOR"] = "cpu"
    if path := _python_path(env.get("PYTHONPATH", "")):
        added["PYTHONPATH"] = path
    return added


def _python_path(given: str) -> str:
    """Return a PYTHONPATH with which ranks import this megads, or "" when they do so anyway."""
    root = Path(__file__).resolve().parents[2]
    entries = [entry for entry in given.split(os.pathsep) if entry]
    if str(root) in entries or root.name in ("site-packages", "dist-packages"):
        return ""
    return os.pathsep.join([str(root), *entries])


def free_port() -> int:
    """Return a TCP port that nobody listens on, below the range the kernel hands to outgoing connections."""
    for _ in range(200):
        port = random.SystemRandom().randint(20000, 32000)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise LaunchError("no free TCP port between 20000 and 32000 on this host; end the programs that hold them")


# Both MPIs reset signals for their ranks. A stop request that comes before a rank has its
# handler must not kill it (the stop file is still there then), so it starts by ignoring it.
_DEAF_TO_USR1 = ("sh", "-c", 'trap "" USR1; exec "$@"', "sh")

Starter = Callable[
    [Allocation, Sequence[str], Mapping[str, str], Mapping[str, str]], tuple[tuple[str, ...], dict[str, str]]
]
"""(allocation, command, what is set already, environment) -> (argv, what else is set)."""


def _direct(
    allocation: Allocation, command: Sequence[str], added: Mapping[str, str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    if allocation.world_size != 1:
        raise LaunchError(
            f"LAUNCH_WITH=direct starts one rank and this run has {allocation.world_size}; "
            "use LAUNCH_WITH=torchrun, openmpi or mpich, or NGPU_PER_HOST=1"
        )
    # Inside `srun --pty bash` SLURM's own variables would call this rank 0 of several.
    return tuple(command), {**dict(zip(EXPLICIT, "0101", strict=True)), IN_PLACE: "1"}


def _torchrun(
    allocation: Allocation, command: Sequence[str], added: Mapping[str, str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    # Static rendezvous: nothing is negotiated, so nothing but the address can be wrong.
    argv = (
        command[0], "-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0", "--rdzv-backend=static",
        f"--nproc-per-node={allocation.ranks_per_host}",
        f"--master-addr={added['MASTER_ADDR']}", f"--master-port={added['MASTER_PORT']}",
        "--max-restarts=0", "--no-python",
        *command,
    )  # fmt: skip
    return argv, {}


def _openmpi(
    allocation: Allocation, command: Sequence[str], added: Mapping[str, str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    program = _find_mpi(
        ("mpirun.openmpi", "mpirun", "mpiexec.openmpi", "mpiexec", "orterun"),
        ("Open MPI", "OpenRTE", "PRRTE"),
        "LAUNCH_WITH=openmpi: no Open MPI mpirun on PATH; install it (apt-get install openmpi-bin, "
        "conda install openmpi), load its module, or use LAUNCH_WITH=torchrun",
        env,
    )
    # A container gives root; the variables, unlike the flag, do not change the command.
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    argv = (program, "-n", str(allocation.world_size), "--oversubscribe", "--bind-to", "none")
    return (*argv, *_DEAF_TO_USR1, *command), as_root


def _mpich(
    allocation: Allocation, command: Sequence[str], added: Mapping[str, str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    program = _find_mpi(
        ("mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun.mpich", "mpirun"),
        ("HYDRA", "Intel(R) MPI Library"),
        "LAUNCH_WITH=mpich: no MPICH mpiexec on PATH; install it (apt-get install mpich, conda install mpich), "
        "load its module, or use LAUNCH_WITH=torchrun",
        env,
    )
    return (program, "-n", str(allocation.world_size), *_DEAF_TO_USR1, *command), {}


STARTERS: dict[str, Starter] = {"direct": _direct, "torchrun": _torchrun, "openmpi": _openmpi, "mpich": _mpich}


def _find_mpi(names: Sequence[str], marks: Sequence[str], missing: str, env: Mapping[str, str]) -> str:
    """Return the first of ``names`` on PATH whose version text has one of ``marks``.

    Several MPIs install programs of the same name, so the name alone says nothing.
    """
    for name in names:
        program = shutil.which(name, path=env.get("PATH", ""))
        if program and any(mark in _version(program, env) for mark in marks):
            return program
    raise LaunchError(missing)


def _version(program: str, env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
