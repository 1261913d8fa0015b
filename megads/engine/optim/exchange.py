"""Whole parameters on one rank, from and to the runs that ranks hold of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.comm.groups import Groups, join
from megads.parallel.tensor import Shard, full_shape, join_shards, take_shard

AXES = ("data", "seq", "tensor")


@dataclass(frozen=True)
class Slot:
    """What this rank holds of one parameter.

    Attributes:
        name: of the parameter.
        parameter: of the module.
        shape: of this tensor-parallel rank's slice.
        first: index in the flattened slice at which the run begins.
        weight: the run, float32, a view of what the optimizer steps; empty where nothing is held.
        gradient: returns the gradient of the run, like ``weight``.
    """

    name: str
    parameter: nn.Parameter
    shape: torch.Size
    first: int
    weight: Tensor
    gradient: Callable[[], Tensor]

    @property
    def count(self) -> int:
        """Elements of the run."""
        return self.weight.numel()

    @property
    def shard(self) -> Shard | None:
        """How the parameter is cut over tensor-parallel ranks."""
        return getattr(self.parameter, "shard", None)

    @property
    def full_shape(self) -> torch.Size:
        """The shape over all tensor-parallel ranks."""
        return full_shape(self.shape, self.shard)


@dataclass
class Team:
    """The ranks of one pipeline stage: data x seq x tensor. Each parameter is stepped by one of them.

    Attributes:
        size: how many there are.
        me: this rank's place.
        tensor_ranks: of every member.
        group: None where there is one member.
        device: on which tensors are sent.
    """

    size: int
    me: int
    tensor_ranks: tuple[int, ...]
    group: dist.ProcessGroup | None
    device: torch.device

    @staticmethod
    def of(groups: Groups, device: torch.device, timeout_s: float | None) -> Team:
        """Return the team that this rank is in. Collective over all ranks."""
        grid = groups.grid
        ranks = grid.group_of(groups.rank, *AXES)
        group = groups.world
        if len(ranks) == 1:
            group = None
        elif len(ranks) < grid.world_size:
            group = join(ranks, lambda: grid.groups(*AXES), timeout_s)
        tensor_ranks = tuple(grid.coordinate(rank)["tensor"] for rank in ranks)
        return Team(len(ranks), ranks.index(groups.rank), tensor_ranks, group, device)

    def swap(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send ``parts[i]`` to member ``i`` and return what came from each, ``sizes[i]`` elements. Collective."""
        if self.group is None:
            return [parts[0]]
        mine = torch.cat(list(parts)).to(self.device)
        found = mine.new_empty(sum(sizes))
        dist.all_to_all_single(found, mine, list(sizes), [part.numel() for part in parts], group=self.group)
        return list(found.split(list(sizes)))


@dataclass
class Batch:
    """Parameters that go through the team together, so that no rank holds more than a few as a whole.

    Attributes:
        team: who exchanges.
        slots: what this rank holds of each; in the same order on every member.
        owners: the member that steps each.
        runs: of what this rank owns, by place in ``slots``: ``[members, 2]``, where each member's run begins and
            its count.
    """

    team: Team
    slots: list[Slot]
    owners: list[int]
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members = range(self.team.size)
        self.owned_by = [[i for i, owner in enumerate(self.owners) if owner == member] for member in members]

    def learn(self) -> None:
        """Have the owners learn who holds which run. Collective."""
        tables = [torch.tensor([[self.slots[i].first, self.slots[i].count] for i in own]) for own in self.owned_by]
        mine = self.owned_by[self.team.me]
        received = self.team.swap([table.long().view(-1) for table in tables], [2 * len(mine)] * self.team.size)
        rows = [part.view(-1, 2).tolist() for part in received]
        self.runs = {i: [(int(each[at][0]), int(each[at][1])) for each in rows] for at, i in enumerate(mine)}

    def gather(self, of: Callable[[Slot], Tensor]) -> dict[int, Tensor]:
        """Return the whole of every parameter that this rank owns, by place in ``slots``, float32. Collective."""
        team = self.team
        sent = [[self.slots[i] for i in own if self._sends(self.slots[i], team.me)] for own in self.owned_by]
        parts = [self._joined([of(slot) for slot in slots]) for slots in sent]
        sizes = [
            sum(runs[member][1] for i, runs in self.runs.items() if self._sends(self.slots[i], member))
            for member in range(team.size)
        ]
        return self._assemble(team.swap(parts, sizes))

    def scatter(self, whole: dict[int, Tensor]) -> None:
        """Set every member's runs to what their owners have in ``whole``. Collective."""
        team = self.team
        degree = max(team.tensor_ranks) + 1
        slices = {
            i: [take_shard(tensor, self.slots[i].shard, rank, degree).reshape(-1) for rank in range(degree)]
            for i, tensor in whole.items()
        }
        parts = []
        for member, tensor_rank in enumerate(team.tensor_ranks):
            runs = {i: each[member] for i, each in self.runs.items()}
            parts.append(self._joined([slices[i][tensor_rank][a : a + n] for i, (a, n) in runs.items()]))
        counts = [[self.slots[i].count for i in own] for own in self.owned_by]
        for own, flat, count in zip(self.owned_by, team.swap(parts, list(map(sum, counts))), counts, strict=True):
            for i, part in zip(own, flat.split(count), strict=True):
                self.slots[i].weight.copy_(part)

    def _assemble(self, received: list[Tensor]) -> dict[int, Tensor]:
        team, found = self.team, {}
        degree = max(team.tensor_ranks) + 1
        ends = [0] * team.size
        for i, runs in self.runs.items():
            slot = self.slots[i]
            slices = [received[0].new_empty(slot.shape) for _ in range(degree if slot.shard is not None else 1)]
            for member, (first, count) in enumerate(runs):
                if self._sends(slot, member):
                    into = slices[team.tensor_ranks[member] if len(slices) > 1 else 0].view(-1)
                    into[first : first + count] = received[member][ends[member] : ends[member] + count]
                    ends[member] += count
            found[i] = join_shards(slices, slot.shard)
        return found

    def _sends(self, slot: Slot, member: int) -> bool:
        """Return whether a member's run goes to the owner: of what all tensor ranks hold, only the first one's."""
        return slot.shard is not None or self.team.tensor_ranks[member] == 0

    def _joined(self, parts: list[Tensor]) -> Tensor:
        device = self.team.device
        flats = [part.detach().reshape(-1).to(device) for part in parts]
        return torch.cat(flats) if flats else torch.empty(0, device=device)
