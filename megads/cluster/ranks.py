"""Which rank this process is, read from the variables its launcher set.

Launchers are rows of :data:`FAMILIES`. All numbers come from one row: taking the rank
from one launcher and the size from another is how jobs hang (a stale ``RANK`` in the
user's shell, ``SLURM_NTASKS`` in a batch script that is no rank at all).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from megads.cluster.mpi import ask_mpi_for_size
from megads.errors import LaunchError

EXPLICIT = ("MEGADS_RANK", "MEGADS_WORLD_SIZE", "MEGADS_LOCAL_RANK", "MEGADS_LOCAL_SIZE")
"""What overrides every launcher; the last one may be skipped."""

NUM_RANKS = "MEGADS_NUM_RANKS"
"""Set by ``megads launch``: how many ranks it started."""

TOKEN = "MEGADS_TOKEN"
"""A secret of one launch, which its ranks find each other by; see docs/clusters.md for what it protects."""

UNKNOWN = -1
"""The local rank where no variable gives it; ``megads.comm.rendezvous.find_local`` then finds it."""

# SLURM numbers its batch, extern, interactive and pending steps from here on, sometimes
# printed as a negative number; none of them was started as a rank by srun.
_FIRST_SPECIAL_STEP = 0xFFFFFFFA

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankInfo:
    """This process among all (``rank`` of ``world_size``) and on its host.

    ``local_rank`` is :data:`UNKNOWN` and ``local_size`` 0 where the launcher does not say.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    family: str  # the launcher that said so


def _always(env: Mapping[str, str], is_shell: bool) -> bool:
    return True


@dataclass(frozen=True)
class Family:
    """The variables of one launcher; of several names the first that is set counts.

    A process belongs to the family when its rank and every variable of ``needs`` are set,
    and ``when(env, is_shell)`` holds; ``is_shell``: what srun started is a terminal's shell.
    """

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    when: Callable[[Mapping[str, str], bool], bool] = _always

    def matches(self, env: Mapping[str, str], is_shell: bool) -> bool:
        """Return whether ``env`` was set by this launcher."""
        return bool(_first(env, self.rank)) and all(env.get(name) for name in self.needs) and self.when(env, is_shell)


def in_slurm_step(env: Mapping[str, str]) -> bool:
    """Return whether srun started this process or the shell it comes from."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP


def _is_srun(env: Mapping[str, str], is_shell: bool) -> bool:
    """Return whether srun started this process as a rank, not as a shell or batch script."""
    return in_slurm_step(env) and not is_shell


def _is_pals(env: Mapping[str, str], is_shell: bool) -> bool:
    """Return whether the PALS variables are not those that ``srun --mpi=cray_shasta`` sets, all or some of them."""
    if not env.get("SLURM_JOB_ID"):
        return True
    if is_shell or not env.get("PALS_LOCAL_RANKID"):
        return False
    return bool(env.get("PMI_SIZE")) or env.get("SLURM_PROCID") != env.get("PALS_RANKID")


def _is_not_slurm(env: Mapping[str, str], is_shell: bool) -> bool:
    """Return whether PMI and PMIx variables are not those that ``srun --mpi=pmi2`` and ``pmix`` set."""
    return not env.get("SLURM_JOB_ID")


_OVERRIDE = Family("MEGADS_RANK", EXPLICIT[:1], EXPLICIT[1:2], EXPLICIT[2:3], EXPLICIT[3:])


def _ompi_like(name: str, prefix: str) -> Family:
    return Family(name, (prefix + "RANK",), (prefix + "SIZE",), (prefix + "LOCAL_RANK",), (prefix + "LOCAL_SIZE",))


def _torch_like(name: str, local_size: str, needs: tuple[str, ...]) -> Family:
    return Family(name, ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), (local_size,), ("WORLD_SIZE", *needs))


FAMILIES = (
    _torch_like("torchrun", "LOCAL_WORLD_SIZE", ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
    _torch_like("DeepSpeed", "LOCAL_SIZE", ("CROSS_RANK", "LOCAL_RANK", "LOCAL_SIZE")),
    _ompi_like("Open MPI", "OMPI_COMM_WORLD_"),
    _ompi_like("MVAPICH2", "MV2_COMM_WORLD_"),
    _ompi_like("jsrun", "JSM_NAMESPACE_"),
    Family("Flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",)),
    # Under PMIx PALS gives no size; PALS_SIZE does not exist.
    Family(
        "PALS",
        ("PALS_RANKID",),
        ("PMI_SIZE",),
        ("PALS_LOCAL_RANKID",),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        when=_is_pals,
    ),
    # srun --mpi=pmi2 sets PMI_RANK too, but not MPI_LOCALRANKID. With -pmi-port Hydra sets
    # PMI_ID in the place of PMI_RANK, and no size.
    Family(
        "MPICH",
        ("PMI_RANK", "PMI_ID"),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
        ("MPI_LOCALRANKID",),
    ),
    # The local size is in SLURM_STEP_TASKS_PER_NODE. SLURM_NTASKS may be the whole job's.
    Family("SLURM", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS",), ("SLURM_LOCALID",), when=_is_srun),
    Family("PMI", ("PMI_RANK",), ("PMI_SIZE",), needs=("PMI_SIZE",), when=_is_not_slurm),
    Family("PMIx", ("PMIX_RANK",), needs=("PMIX_NAMESPACE",), when=_is_not_slurm),
    _torch_like("RANK", "LOCAL_WORLD_SIZE", ()),
)
"""Launchers in order of precedence; tests/cluster/recorded holds the variables that real runs of them set."""

# In the ranks of Open MPI or Hydra, srun's variables number the hosts; in those of torchrun and
# DeepSpeed all others do, where one agent a host was started by them.
_STARTS_AGENTS = "SLURM"
_AGENTS = ("torchrun", "DeepSpeed")


_SIZES = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
    "JSM_NAMESPACE_SIZE": "JSM_NAMESPACE_RANK",
    "FLUX_JOB_SIZE": "FLUX_TASK_RANK",
    "PALS_LOCAL_SIZE": "PALS_RANKID",
    "PMI_SIZE": "PMI_RANK",
}
"""Variables that only ranks have: how many there are, and which one this is."""

_OF_AGENTS = ("TORCHELASTIC_RUN_ID", "CROSS_RANK")
"""What torchrun and DeepSpeed set for their ranks besides RANK."""


def rank_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables by which this process is one of several ranks: of their number, and of this one's.

    Empty for a process that is to start ranks. RANK and WORLD_SIZE alone are what people leave
    in a shell, and a shell that srun gave a terminal to is rank 0 of a step: neither is a rank.
    """
    sizes = dict(_SIZES)
    if in_slurm_step(env) and "SLURM_PTY_PORT" not in env:
        sizes["SLURM_STEP_NUM_TASKS"] = "SLURM_PROCID"
    if any(env.get(name) for name in _OF_AGENTS):
        sizes["WORLD_SIZE"] = "RANK"
    found = [(size, rank) for size, rank in sizes.items() if _above(env, rank, 0) or _above(env, size, 1)]
    return [(size, rank) for size, rank in found if env.get(size) and env.get(rank)]


def _above(env: Mapping[str, str], name: str, least: int) -> bool:
    text = env.get(name, "")
    return text.isdecimal() and int(text) > least


def find_ranks(
    env: Mapping[str, str] | None = None, *, has_terminal: bool | None = None, asks_mpi: bool = True
) -> RankInfo:
    """Return this process's rank; 0 of 1 when no launcher started it.

    In order: ``MEGADS_RANK``, ``_WORLD_SIZE`` and ``_LOCAL_RANK``, all or none; then the
    first of :data:`FAMILIES` whose variables are set. Where it gives no number of ranks,
    ``MEGADS_NUM_RANKS`` does, else MPI itself through mpi4py. A local rank that no variable
    gives is left :data:`UNKNOWN`: ``rank % n`` is wrong for cyclic and uneven layouts.

    Args:
        env: the environment to read; None for this process's own.
        has_terminal: whether a terminal controls this process; None to ask. It tells a shell
            of ``srun --pty`` from the ranks that an srun inside of it starts.
        asks_mpi: whether MPI is started where nothing else tells the number of ranks.

    Raises:
        LaunchError: when the launcher's numbers are incomplete or contradict each other.
    """
    env = os.environ if env is None else env
    if any(env.get(name) for name in EXPLICIT):
        return _with_size(env, _read(env, _OVERRIDE, needs=EXPLICIT[:3]), asks_mpi=asks_mpi)
    is_shell = _is_shell(env, has_terminal)
    found = [family for family in FAMILIES if family.matches(env, is_shell)]
    if not found:
        return _alone(env)
    info = _with_size(env, _read(env, found[0]), asks_mpi=asks_mpi)
    _warn_about_others(env, info, found[1:])
    return info


def _read(env: Mapping[str, str], family: Family, needs: tuple[str, ...] = ()) -> RankInfo:
    """Return what the family's variables say; a world size that they do not give is UNKNOWN."""
    for name in needs:
        if not env.get(name):
            raise LaunchError(f"{family.name} needs {', '.join(needs)} to be set together; {name} is not")
    return RankInfo(
        _number(env, family.rank, family.name, UNKNOWN),
        _number(env, family.world_size, family.name, UNKNOWN),
        _number(env, family.local_rank, family.name, UNKNOWN),
        _slurm_tasks(env) if family.name == "SLURM" else _number(env, family.local_size, family.name, 0),
        family.name,
    )


def _with_size(env: Mapping[str, str], info: RankInfo, *, asks_mpi: bool) -> RankInfo:
    """Return ``info`` with the number of ranks, checked."""
    started = _number(env, (NUM_RANKS,), "megads launch", UNKNOWN)
    size = info.world_size
    if size == started == UNKNOWN and not asks_mpi:
        raise LaunchError(
            f"{info.family} says this is rank {info.rank} but not the world size; set {NUM_RANKS} to the "
            "number of ranks"
        )
    if size == UNKNOWN:
        size = started if started != UNKNOWN else ask_mpi_for_size(info.rank, info.local_size, info.family)
    if started not in (UNKNOWN, size):
        raise LaunchError(
            f"{info.family} says rank {info.rank} of {size}, but {started} ranks were started ({NUM_RANKS}): another "
            "MPI or PMI set these variables; choose the right launcher with LAUNCH_WITH, or unset "
            f"{NUM_RANKS} if nothing started this process"
        )
    info = replace(info, world_size=size)
    if size == 1 and info.rank == 0 and info.local_size <= 1:
        return replace(info, local_rank=0, local_size=1)
    # A local size of 0 is not known, and no local rank is too high for it.
    below = info.local_size or size
    if not (0 <= info.rank < size and UNKNOWN <= info.local_rank < below <= size):
        local = f", local rank {info.local_rank} of {info.local_size or 'an unknown number'}"
        raise LaunchError(
            f"{info.family} says rank {info.rank} of {size}{'' if info.local_rank == UNKNOWN else local}; "
            "ranks count from 0, and a host has at most the world size"
        )
    return info


def _alone(env: Mapping[str, str]) -> RankInfo:
    started = _number(env, (NUM_RANKS,), "megads launch", 1)
    if started > 1:
        raise LaunchError(
            f"{started} ranks were started ({NUM_RANKS}), but no variable says which of them this process is, and it "
            "runs as a single rank: it was not started by the expected launcher; choose one with LAUNCH_WITH"
        )
    return RankInfo(0, 1, 0, 1, "single")


def _slurm_tasks(env: Mapping[str, str]) -> int:
    """Return the step's tasks on this node, 0 where SLURM does not say."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = _number(env, ("SLURM_NODEID",), "SLURM", UNKNOWN)
    tasks = tasks_per_node(text)
    if not tasks or node == UNKNOWN:
        return 0
    if node >= len(tasks):
        raise LaunchError(
            f"SLURM: SLURM_NODEID={node} is not among the {len(tasks)} nodes of "
            f"SLURM_STEP_TASKS_PER_NODE={text!r}; start the ranks with srun"
        )
    return tasks[node]


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node of SLURM's ``2(x3),1``: ``[2, 2, 2, 1]``."""
    tasks: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if not match:
            raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 2(x3),1")
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _is_shell(env: Mapping[str, str], has_terminal: bool | None) -> bool:
    """Return whether this process runs in a terminal that srun opened, in which a user types.

    srun names the terminal's port, and every srun inside of it hands the name on; only
    what the user typed himself is still under the terminal's control.
    """
    if not env.get("SLURM_PTY_PORT"):
        return False
    return _controlled_by_terminal() if has_terminal is None else has_terminal


def _controlled_by_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if env.get(name)), "")


def _number(env: Mapping[str, str], names: tuple[str, ...], family: str, default: int) -> int:
    name = _first(env, names)
    if not name:
        return default
    try:
        return int(env[name])
    except ValueError:
        raise LaunchError(f"{name}={env[name]!r} ({family}) is not an integer") from None


def _warn_about_others(env: Mapping[str, str], info: RankInfo, others: list[Family]) -> None:
    """Tell of variables that name another rank; once, not on every rank.

    Rank 0 speaks; of a number that is the same everywhere and happens to be 0, which is
    how stale ones are, rank 1 does.
    """
    if info.family in _AGENTS:
        return
    rivals = [(other.name, _first(env, other.rank)) for other in others if other.name not in (_STARTS_AGENTS, "RANK")]
    if env.get("RANK") and info.family != "RANK":
        rivals.append(("the environment", "RANK"))
    for name, variable in rivals:
        if env[variable] != str(info.rank) and (info.rank == 0 or (info.rank == 1 and env[variable] == "0")):
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


def export_place(info: RankInfo) -> None:
    """Set ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` for the rest of this process, for oneCCL's bindings of torch.

    Where they are not set and no MPI has started the ranks, the bindings take each new group's rank
    and size for the host's, and the second group ends in an exception of oneCCL.
    """
    os.environ["LOCAL_RANK"] = str(info.local_rank)
    os.environ["LOCAL_WORLD_SIZE"] = str(info.local_size)
