"""The process groups of the grid, and how a rank joins the others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from megads.cluster.ranks import RankInfo, export_place
from megads.comm.devices import compare_devices
from megads.comm.grid import AXES, Grid
from megads.comm.hosts_of_ranks import RankHosts, is_first_here
from megads.comm.rendezvous import find_local, meet
from megads.config.schema import RunConfig
from megads.device.attention_order import order_kernels
from megads.device.vendor import Vendor, vendor
from megads.errors import ConfigError

GROUPS: dict[str, tuple[str, ...]] = {
    "world": AXES,
    "tensor": ("tensor",),
    "seq": ("seq",),
    "data": ("data",),
    "data_seq": ("data", "seq"),
    "pipe": ("pipe",),
    "model": ("pipe", "tensor"),
}
"""Name of a group -> the axes along which its ranks differ. The order is the order of making."""

ENDS = "ends"
"""Name of the group of the first and the last pipeline stage, which share tied embeddings."""

FIRST_TIMES = 2.0
"""The first step, save and validation, and the set-up, may take this many times ``launch.timeout_s``."""

MARGIN_S = 60.0
"""For the watchdog to report and to end the run, before torch's own time-out does so without a report."""

LOST_PEER = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "remote process exit"),
)
"""What gloo and NCCL say to the ranks that did not fail."""


def is_lost_peer(text: str) -> bool:
    """Return whether an error only says that another rank is gone."""
    return any(sign in text for sign in LOST_PEER)


def group_timeout_s(timeout_s: float) -> float:
    """Return the time-out of torch's process groups, in seconds, for ``launch.timeout_s``.

    It is longer than the longest that the watchdog (``megads.train.fault.watchdog``) allows a phase
    whose length is not known yet, so that the watchdog comes first and says who is missing.
    """
    return FIRST_TIMES * timeout_s + MARGIN_S


@dataclass(frozen=True)
class Groups:
    """This rank's groups. A group of one rank is None: there is nobody to talk to.

    ``data_seq`` is where gradients are averaged; ``model`` (pipe x tensor) is where the
    squares of gradient norms are summed; ``ends`` (None on the stages between) is where the
    gradients of tied embeddings are summed.
    """

    grid: Grid
    rank: int
    world: dist.ProcessGroup | None = None
    tensor: dist.ProcessGroup | None = None
    seq: dist.ProcessGroup | None = None
    data: dist.ProcessGroup | None = None
    data_seq: dist.ProcessGroup | None = None
    pipe: dist.ProcessGroup | None = None
    model: dist.ProcessGroup | None = None
    ends: dist.ProcessGroup | None = None
    hosts: Sequence[str] = field(default=(), repr=False, compare=False)  # of every rank
    is_first_on_host: bool = field(default=True, repr=False, compare=False)  # one of its host's ranks is
    _alone: list[dist.ProcessGroup | None] = field(default_factory=list, repr=False, compare=False)
    tensor_rank: int = field(init=False)  # this rank's index along every axis
    seq_rank: int = field(init=False)
    data_rank: int = field(init=False)  # which samples it reads
    pipe_rank: int = field(init=False)  # its pipeline stage
    tensor_size: int = field(init=False)  # the degree of every axis
    seq_size: int = field(init=False)
    data_size: int = field(init=False)
    pipe_size: int = field(init=False)
    data_seq_size: int = field(init=False)  # ranks over which gradients are averaged

    def __post_init__(self) -> None:
        for axis, index in self.grid.coordinate(self.rank).items():
            object.__setattr__(self, f"{axis}_rank", index)
            object.__setattr__(self, f"{axis}_size", self.grid.degree(axis))
        object.__setattr__(self, "data_seq_size", self.grid.degree("data", "seq"))

    def within_sequence_rank(self) -> Groups:
        """Return the groups for what is computed of this sequence rank's tokens alone, as if they were whole rows."""
        alone = replace(self, seq=None)
        object.__setattr__(alone, "seq_rank", 0)
        object.__setattr__(alone, "seq_size", 1)
        return alone

    def process_group(self, name: str) -> dist.ProcessGroup:
        """Return the group as an object even where it has one rank, as DeepSpeed wants it.

        The group of one is shared by every name that needs one. ``torch.distributed`` must
        have been initialised.
        """
        group: dist.ProcessGroup | None = getattr(self, name)
        if group is not None:
            return group
        alone = self._alone[0] if self._alone else dist.group.WORLD
        assert alone is not None
        return alone

    def ranks(self, name: str) -> tuple[int, ...]:
        """Return the global ranks of the group ``name`` that this rank belongs to, ascending."""
        if name == ENDS:
            line = self.grid.group_of(self.rank, "pipe")
            return tuple(dict.fromkeys((line[0], line[-1])))
        return self.grid.group_of(self.rank, *GROUPS[name])


def make_groups(grid: Grid, rank: int, *, timeout_s: float | None = None) -> Groups:
    """Make this rank's groups of the grid.

    All ranks must call it. The number of collective calls is the number of axes and does
    not grow with the ranks: where the backend can split a communicator, one call makes all
    groups of an axis; elsewhere each rank joins only its own group, and only its members
    meet. Axes that partition the ranks equally share one group, and the whole world is not
    made twice. A grid of one rank makes nothing and needs no ``torch.distributed``. ``timeout_s``
    is the longest wait in a collective; None: the backend's default.

    Raises:
        ConfigError: the grid does not cover the world.
    """
    if grid.world_size > 1 and dist.get_world_size() != grid.world_size:
        raise ConfigError(
            f"a grid of {grid.world_size} ranks does not cover the {dist.get_world_size()} ranks that started"
        )
    made: dict[tuple[str, ...], dist.ProcessGroup | None] = {}
    mine: dict[str, dist.ProcessGroup | None] = {}
    for name, along in GROUPS.items():
        # Axes of degree 1 change nothing about who is in a group.
        wide = tuple(axis for axis in along if grid.degree(axis) > 1)
        if wide not in made:
            made[wide] = _make(grid, rank, wide, timeout_s)
        mine[name] = made[wide]
    mine[ENDS] = mine["pipe"] if grid.pipe <= 2 else _make_ends(grid, rank, timeout_s)
    alone = []
    if grid.world_size > 1 and any(mine[name] is None for name in GROUPS):
        # Now, when every rank does it: see join.
        alone.append(join((rank,), lambda: [(each,) for each in range(grid.world_size)], timeout_s))
    return Groups(grid, rank, **mine, hosts=(), is_first_on_host=True, _alone=alone)


def _make(grid: Grid, rank: int, along: tuple[str, ...], timeout_s: float | None) -> dist.ProcessGroup | None:
    """Return this rank's group along the axes, None where it would have one rank."""
    if not along:
        return None
    if grid.degree(*along) == grid.world_size:
        return dist.group.WORLD
    return join(grid.group_of(rank, *along), lambda: grid.groups(*along), timeout_s)


def _make_ends(grid: Grid, rank: int, timeout_s: float | None) -> dist.ProcessGroup | None:
    """Return the group of this rank's first and last stage, None on a stage between."""
    line = grid.group_of(rank, "pipe")
    pair = (line[0], line[-1])
    return join(
        pair if rank in pair else (), lambda: [(ranks[0], ranks[-1]) for ranks in grid.groups("pipe")], timeout_s
    )


def join(
    ranks: Sequence[int], everyone: Callable[[], list[tuple[int, ...]]], timeout_s: float | None
) -> dist.ProcessGroup | None:
    """Make the group ``ranks``, empty on a rank that is in none; ``everyone()`` lists the groups of all ranks."""
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    if _splits():
        # A communicator is split by all of its ranks at once.
        return dist.split_group(split_ranks=[list(group) for group in everyone()], timeout=timeout)
    # torch names a group after its ranks and how many groups each of them has made before: who
    # is in none makes one of its own, or the next group that both are in would never meet.
    made = dist.new_group(list(ranks) or [dist.get_rank()], timeout=timeout, use_local_synchronization=True)
    return made if ranks else None


def _splits() -> bool:
    """Return whether the world's communicator is bound to a device and can be split."""
    world = dist.group.WORLD
    if world is None or world.bound_device_id is None:
        return False
    return bool(world._get_backend(world.bound_device_id).supports_splitting)


def init_distributed(
    backend: str, info: RankInfo, timeout_s: float, *, store: dist.Store, device: torch.device
) -> None:
    """Join the other ranks of the run, which have met in ``store``; nothing is read from the environment.

    ``timeout_s`` is the longest wait for another rank, here and in every collective. An accelerator
    as ``device`` binds the communicator to it.
    """
    # Each pair of ranks that talks connects when it does: else every rank connects to all of its group.
    if info.world_size > 1:
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    # torch 2.13 renames two collectives; DeepSpeed and we call them by the names that older versions know too.
    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
    dist.init_process_group(
        backend,
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type != "cpu" else None,
    )


def join_ranks(
    run: RunConfig, info: RankInfo, env: Mapping[str, str], wait_s: float = 0.0
) -> tuple[Vendor, torch.device, Groups]:
    """Meet the other ranks, claim this rank's device, and make its groups.

    Ranks meet first: which device is a rank's may depend on who else is on its host. The
    longest wait in a collective is ``wait_s``, or ``launch.timeout_s``.

    Raises:
        DeviceError: there is no device for this rank, or ranks share one or differ in the vendor.
    """
    wait_s = wait_s or run.launch.timeout_s
    row = vendor(env)
    store = meet(info, run.launch.timeout_s, env)
    info = find_local(info, store)
    device = row.device(info.local_rank)
    hosts = RankHosts(store, info.rank, info.world_size)
    is_first = is_first_here(store)
    compare_devices(row, device, info, store, env, force=run.train.force)
    if row.backend == "ccl":
        export_place(info)
    init_distributed(row.backend, info, wait_s, device=device, store=store)
    order_kernels(row.name, device)
    grid = Grid(run.parallel.pipeline, run.parallel.data, run.parallel.sequence, run.parallel.tensor)
    groups = make_groups(grid, info.rank, timeout_s=wait_s)
    return row, device, replace(groups, hosts=hosts, is_first_on_host=is_first)
