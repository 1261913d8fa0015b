"""Which rank this process is, read from the variables its launcher set.

Launchers are rows of :data:`FAMILIES`. All four numbers come from one row: taking the
rank from one launcher and the size from another is how jobs hang (a stale ``RANK`` in
the user's shell, ``SLURM_NTASKS`` in a batch script that is no rank at all).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from megads.errors import LaunchError

EXPLICIT = ("MEGADS_RANK", "MEGADS_WORLD_SIZE", "MEGADS_LOCAL_RANK", "MEGADS_LOCAL_SIZE")

# SLURM numbers its batch, extern, interactive and pending steps from here on, sometimes
# printed as a negative number; none of them was started as a rank by srun.
_FIRST_SPECIAL_STEP = 0xFFFFFFFA

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankInfo:
    """This process among all (``rank`` of ``world_size``) and on its host."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    family: str  # the launcher that said so


@dataclass(frozen=True)
class Family:
    """The variables of one launcher; of several names the first that is set counts.

    A process belongs to the family when its rank, its local rank and every variable of
    ``needs`` are set. ``num_hosts`` gives the local size where no variable does.
    """

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    needs: tuple[str, ...] = ()
    num_hosts: str = ""

    def matches(self, env: Mapping[str, str]) -> bool:
        """Return whether ``env`` was set by this launcher."""
        found = _first(env, self.rank) and _first(env, self.local_rank)
        return bool(found) and all(env.get(name) for name in self.needs)


def _ompi_like(name: str, prefix: str) -> Family:
    return Family(name, (prefix + "RANK",), (prefix + "SIZE",), (prefix + "LOCAL_RANK",), (prefix + "LOCAL_SIZE",))


FAMILIES = (
    Family(
        "torchrun",
        ("RANK",),
        ("WORLD_SIZE",),
        ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE",),
        needs=("GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ),
    _ompi_like("Open MPI", "OMPI_COMM_WORLD_"),
    _ompi_like("MVAPICH2", "MV2_COMM_WORLD_"),
    _ompi_like("jsrun", "JSM_NAMESPACE_"),
    Family(
        "Flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",), (), (), num_hosts="FLUX_JOB_NNODES"
    ),
    # Under PMIx PALS gives no size. srun with cray_shasta sets PALS_RANKID without a
    # local rank; such a process is srun's.
    Family("PALS", ("PALS_RANKID",), ("PMI_SIZE",), ("PALS_LOCAL_RANKID",), ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")),
    # srun --mpi=pmi2 sets PMI_RANK too, but not MPI_LOCALRANKID.
    Family("MPICH", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",)),
)
"""Launchers in order of precedence; tests/cluster holds the variables that real runs of them set."""


def find_ranks(env: Mapping[str, str] | None = None) -> RankInfo:
    """Return this process's rank; 0 of 1 when no launcher started it.

    In order: ``MEGADS_RANK`` and its three companions, all or none; a complete torchrun
    set; one of the MPI-like launchers; SLURM, only inside a step that srun started; a
    hand-made ``RANK`` and ``WORLD_SIZE``.

    Args:
        env: the environment to read; None for this process's own.

    Raises:
        LaunchError: when the launcher's numbers are incomplete or contradict each other.
    """
    env = os.environ if env is None else env
    if any(env.get(name) for name in EXPLICIT):
        return _checked("MEGADS_RANK", [_required(env, (name,), "MEGADS_RANK") for name in EXPLICIT])
    found = [family for family in FAMILIES if family.matches(env)]
    if found:
        info = _from_family(env, found[0])
        _warn_about_others(env, info, found[1:])
        return info
    if _in_slurm_step(env):
        return _from_slurm(env)
    if env.get("RANK") and env.get("WORLD_SIZE"):
        return _from_hand(env)
    return RankInfo(0, 1, 0, 1, "single")


def _from_family(env: Mapping[str, str], family: Family) -> RankInfo:
    rank = _required(env, family.rank, family.name)
    world_size = _required(env, family.world_size, family.name)
    local_rank = _required(env, family.local_rank, family.name)
    if family.num_hosts:
        num_hosts = _required(env, (family.num_hosts,), family.name)
        if num_hosts < 1 or world_size % num_hosts:
            raise LaunchError(
                f"{family.name}: {world_size} ranks do not divide over {family.num_hosts}={num_hosts} hosts; "
                "use a multiple, or set MEGADS_RANK, MEGADS_WORLD_SIZE, MEGADS_LOCAL_RANK and MEGADS_LOCAL_SIZE"
            )
        return _checked(family.name, [rank, world_size, local_rank, world_size // num_hosts])
    return _checked(family.name, [rank, world_size, local_rank, _required(env, family.local_size, family.name)])


def _from_slurm(env: Mapping[str, str]) -> RankInfo:
    node = _required(env, ("SLURM_NODEID",), "SLURM")
    tasks = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node >= len(tasks):
        raise LaunchError(
            f"SLURM: SLURM_NODEID={node} is not among the {len(tasks)} nodes of "
            f"SLURM_STEP_TASKS_PER_NODE={env.get('SLURM_STEP_TASKS_PER_NODE', '')!r}; start the ranks with srun"
        )
    rank = _required(env, ("SLURM_PROCID",), "SLURM")
    size = _required(env, ("SLURM_STEP_NUM_TASKS",), "SLURM")
    return _checked("SLURM", [rank, size, _required(env, ("SLURM_LOCALID",), "SLURM"), tasks[node]])


def _from_hand(env: Mapping[str, str]) -> RankInfo:
    rank, size = _required(env, ("RANK",), "RANK"), _required(env, ("WORLD_SIZE",), "RANK")
    if size == 1:
        return _checked("RANK", [rank, 1, 0, 1])
    if not (env.get("LOCAL_RANK") and env.get("LOCAL_WORLD_SIZE")):
        raise LaunchError(
            f"RANK={rank} and WORLD_SIZE={size} are set without LOCAL_RANK and LOCAL_WORLD_SIZE; "
            "set these too, or unset RANK and WORLD_SIZE and start the ranks with torchrun"
        )
    local = [_required(env, (name,), "RANK") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    return _checked("RANK", [rank, size, *local])


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node of SLURM's ``2(x3),1``: ``[2, 2, 2, 1]``."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match:
            raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 2(x3),1")
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _in_slurm_step(env: Mapping[str, str]) -> bool:
    """Return whether srun started this process as a rank, not as a shell or batch script."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < _FIRST_SPECIAL_STEP and "SLURM_PROCID" in env and "SLURM_PTY_PORT" not in env


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if env.get(name)), "")


def _required(env: Mapping[str, str], names: tuple[str, ...], family: str) -> int:
    name = _first(env, names)
    if not name:
        raise LaunchError(
            f"{family} set a rank but not {' or '.join(names)}; set all of {', '.join(EXPLICIT)} "
            "or start the ranks with torchrun"
        )
    try:
        return int(env[name])
    except ValueError:
        raise LaunchError(f"{name}={env[name]!r} ({family}) is not an integer") from None


def _checked(family: str, numbers: list[int]) -> RankInfo:
    rank, size, local_rank, local_size = numbers
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise LaunchError(
            f"{family} says rank {rank} of {size}, local rank {local_rank} of {local_size}; "
            "ranks count from 0 and a host has no more of them than there are in all"
        )
    return RankInfo(rank, size, local_rank, local_size, family)


def _warn_about_others(env: Mapping[str, str], info: RankInfo, others: list[Family]) -> None:
    rivals = [(family.name, _first(env, family.rank)) for family in others]
    if info.family != "torchrun" and env.get("RANK"):
        rivals.append(("the environment", "RANK"))
    for name, variable in rivals:
        if env[variable] != str(info.rank):
            _log.warning(
                "%s says rank %d, %s says %s=%s; using %s", info.family, info.rank, name, variable, env[variable],
                info.family,
            )  # fmt: skip


@contextmanager
def exported_local_rank(index: int) -> Iterator[None]:
    """Set ``LOCAL_RANK`` for a library that insists on reading it, as DeepSpeed does.

    Open MPI's own number is hidden meanwhile: DeepSpeed refuses two that differ.

    Args:
        index: of this rank's device, which is not the local rank where a launcher shows
            each process one device.
    """
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ["LOCAL_RANK"] = str(index)
    try:
        yield
    finally:
        del os.environ["LOCAL_RANK"]
        os.environ.update(before)
