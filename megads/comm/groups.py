"""The process groups of the grid, and how a rank joins the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from megads.comm.grid import AXES, Grid
from megads.errors import ConfigError, LaunchError

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


class Place(Protocol):
    """What :func:`init_distributed` needs of a ``megads.cluster.ranks.RankInfo``."""

    @property
    def rank(self) -> int:
        """Return the global rank."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""


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
    _alone: list[dist.ProcessGroup | None] = field(default_factory=list, repr=False, compare=False)

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

    @property
    def coordinate(self) -> dict[str, int]:
        """Return this rank's index along every axis."""
        return self.grid.coordinate(self.rank)

    @property
    def tensor_rank(self) -> int:
        """Return this rank's index along the tensor axis."""
        return self.coordinate["tensor"]

    @property
    def tensor_size(self) -> int:
        """Return the tensor-parallel degree."""
        return self.grid.tensor

    @property
    def seq_rank(self) -> int:
        """Return this rank's index along the sequence axis."""
        return self.coordinate["seq"]

    @property
    def seq_size(self) -> int:
        """Return the sequence-parallel degree."""
        return self.grid.seq

    @property
    def data_rank(self) -> int:
        """Return this rank's index along the data axis: which samples it reads."""
        return self.coordinate["data"]

    @property
    def data_size(self) -> int:
        """Return the data-parallel degree."""
        return self.grid.data

    @property
    def data_seq_size(self) -> int:
        """Return the number of ranks over which gradients are averaged."""
        return self.grid.degree("data", "seq")

    @property
    def pipe_rank(self) -> int:
        """Return this rank's pipeline stage."""
        return self.coordinate["pipe"]

    @property
    def pipe_size(self) -> int:
        """Return the number of pipeline stages."""
        return self.grid.pipe

    @property
    def is_first_stage(self) -> bool:
        """Return whether this rank holds the embedding."""
        return self.pipe_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Return whether this rank computes the loss."""
        return self.pipe_rank == self.grid.pipe - 1


def make_groups(grid: Grid, rank: int, *, timeout_s: float | None = None) -> Groups:
    """Make this rank's groups of the grid.

    All ranks must call it. The number of collective calls is the number of axes and does
    not grow with the ranks: where the backend can split a communicator, one call makes all
    groups of an axis; elsewhere each rank joins only its own group, and only its members
    meet. Axes that partition the ranks alike share one group, and the whole world is not
    made twice. A grid of one rank makes nothing and needs no ``torch.distributed``.

    Args:
        grid: must cover the whole world.
        rank: this process's global rank.
        timeout_s: longest wait in a collective; None: the backend's default.

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
    return Groups(grid, rank, **mine, _alone=alone)


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
    backend: str,
    info: Place,
    timeout_s: float,
    *,
    device: torch.device | None = None,
    store: dist.Store | Path | None = None,
) -> None:
    """Join the other ranks of the run.

    The rank and the world size come from ``info``, never from the environment.

    Args:
        backend: name of a ``torch.distributed`` backend; ``Vendor.backend``.
        info: rank and world size.
        timeout_s: longest wait for another rank, here and in every collective.
        device: this rank's accelerator, which binds the communicator to it; None or a cpu: no binding.
        store: where the ranks have met, :func:`megads.comm.rendezvous.meet`; or a file that does
            not exist yet, in a folder that all share; None for one rank alone.

    Raises:
        LaunchError: several ranks, but nowhere to meet.
    """
    # torch 2.13 renames two collectives; DeepSpeed and we call them by the names that older versions know too.
    warnings.filterwarnings("ignore", r".*torch\.distributed\.\w+` is deprecated", FutureWarning)
    if store is None and info.world_size > 1:
        raise LaunchError(f"rank {info.rank} of {info.world_size} has no rendezvous store")
    if store is None:
        store = dist.HashStore()
    elif isinstance(store, Path):
        store = dist.FileStore(str(store), info.world_size)
    dist.init_process_group(
        backend,
        store=store,
        rank=info.rank,
        world_size=info.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device is not None and device.type != "cpu" else None,
    )
