"""Optimizers whose rule sees a whole tensor: its norm, its blocks, or the matrix.

ZeRO hands an optimizer flat partitions that are cut anywhere, and tensor parallelism cuts the
matrix itself; a rule that looks at more than one number at a time silently becomes another one
there. Here one rank of each pipeline stage gathers a parameter and its gradient, steps it with the
library's class, and sends the new weight back. Parameters are shared out so that ranks have about
as many numbers; each keeps the state of its own only, for every ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from megads.config.estimate.optimizer_memory import AT_ONCE
from megads.engine.optim.classes import Make
from megads.engine.optim.codec import pack, settle, unpack
from megads.engine.optim.exchange import Batch, Slot, Team


@dataclass(frozen=True)
class Call:
    """The parameters of one call of ``step`` and one group.

    Attributes:
        key: a tensor that DeepSpeed has in the group then.
        label: of the group.
        slots: in the same order on every rank of the stage.
    """

    key: Tensor
    label: str
    slots: list[Slot]


@dataclass
class _Round:
    """What is exchanged and stepped together: the batch, and the library's optimizer of what is owned here."""

    batch: Batch
    weights: dict[int, nn.Parameter]  # by place in the batch's slots
    optimizer: torch.optim.Optimizer | None
    is_galore: bool

    def step(self, lr: float, weight_decay: float) -> None:
        """Step every parameter of the batch. Collective."""
        weights, gradients = (
            self.batch.gather(lambda slot: slot.weight),
            self.batch.gather(lambda slot: slot.gradient()),
        )
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"], group["weight_decay"] = lr, weight_decay
            for i, parameter in self.weights.items():
                parameter.data, parameter.grad = weights[i], gradients[i]
            self.optimizer.step()
            settle(self.optimizer)
            # A copy less while the new weights are on their way.
            gradients.clear()
            for parameter in self.weights.values():
                parameter.grad = None
        found = {i: parameter.data for i, parameter in self.weights.items()}
        self.batch.scatter(found)
        for parameter in self.weights.values():
            parameter.data, parameter.grad = _nothing(parameter), None
            if hasattr(parameter, "saved_data"):  # GaLore's 8-bit class keeps the whole weight there
                del parameter.saved_data


class WholeOptimizer(torch.optim.Optimizer):
    """Gives DeepSpeed an optimizer of flat partitions, and steps whole parameters.

    Args:
        groups: see ``megads.engine.optim.build.parameter_groups``.
        makers: label of a group -> what makes the optimizer of its parameters.
        options: label of a group -> what its group of the library's optimizer has besides.
        lr: learning rate.
        one_by_one: a rank gathers no second parameter before the first is stepped.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        makers: Mapping[str, Make],
        options: Mapping[str, Mapping[str, Any]],
        lr: float,
        *,
        one_by_one: bool = False,
    ):
        self.makers, self.options = makers, options
        self.at_once = 1 if one_by_one else AT_ONCE
        self.rounds: dict[int, list[_Round]] = {}
        self.spread: Callable[[Slot], None] | None = None
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    def attach(self, team: Team, calls: Sequence[Call], spread: Callable[[Slot], None] | None) -> None:
        """Learn where the parameters are, now that DeepSpeed has shared them out. Collective over the team.

        Args:
            team: the ranks of this pipeline stage.
            calls: every call and group, in the same order on every member.
            spread: has all ranks take what their runs were set to; None: DeepSpeed does.
        """
        self.spread = spread
        slots = [slot for call in calls for slot in call.slots]
        owners = share_out([_size(slot, team) for slot in slots], team.size)
        owner_of = dict(zip((id(slot) for slot in slots), owners, strict=True))
        self.rounds = {}
        for call in calls:
            sizes = [_size(slot, team) for slot in call.slots]
            owned_by = [owner_of[id(slot)] for slot in call.slots]
            made = [self._round(team, call, which) for which in rounds(sizes, owned_by, self.at_once)]
            self.rounds.setdefault(id(call.key), []).extend(made)

    def _round(self, team: Team, call: Call, which: list[tuple[int, int]]) -> _Round:
        batch = Batch(team, [call.slots[i] for i, _ in which], [owner for _, owner in which])
        batch.learn()
        weights = {i: nn.Parameter(_nothing_of(_whole_shape(batch.slots[i], team), team.device)) for i in batch.runs}
        optimizer = None
        if weights:
            group = {"params": list(weights.values()), **self.options.get(call.label, {})}
            optimizer = self.makers[call.label]([group])
        return _Round(batch, weights, optimizer, bool(self.options.get(call.label)))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step the parameters of the groups that are there now. Collective over the team."""
        assert closure is None
        assert self.rounds, "the optimizer is not attached"
        for group in self.param_groups:
            keys = {id(tensor): tensor for tensor in group["params"]}
            for key in keys:
                for each in self.rounds.get(key, ()):
                    each.step(group["lr"], group["weight_decay"])
                    if self.spread is not None:
                        for slot in each.batch.slots:
                            self.spread(slot)

    # State

    def inner(self) -> Iterator[torch.optim.Optimizer]:
        """Yield the library's optimizers of what this rank steps."""
        yield from (each.optimizer for each in self._all_rounds() if each.optimizer is not None)

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and state of every parameter that this rank steps: tensors and plain numbers, by key."""
        for slot, parameter, optimizer, _ in self._owned():
            found = pack(optimizer, parameter)
            if found:
                yield slot.name, found

    def load_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of every parameter that this rank steps; an empty one is as before the first step."""
        for slot, parameter, optimizer, options in self._owned():
            unpack(optimizer, parameter, state_of(slot.name), options)

    def _owned(self) -> Iterator[tuple[Slot, nn.Parameter, torch.optim.Optimizer, bool]]:
        for each in self._all_rounds():
            for i, parameter in each.weights.items():
                assert each.optimizer is not None
                yield each.batch.slots[i], parameter, each.optimizer, each.is_galore

    def _all_rounds(self) -> Iterable[_Round]:
        return (each for found in self.rounds.values() for each in found)


def share_out(sizes: Sequence[int], members: int) -> list[int]:
    """Return which member steps each of the parameters of ``sizes``: the largest first, each to who has least."""
    owners, loads = [0] * len(sizes), [0] * members
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owners[i] = min(range(members), key=lambda member: (loads[member], member))
        loads[owners[i]] += sizes[i]
    return owners


def rounds(sizes: Sequence[int], owners: Sequence[int], at_once: int) -> list[list[tuple[int, int]]]:
    """Return (place, owner) of the parameters that are exchanged together: of each owner at most ``at_once`` numbers.

    A parameter that is larger goes alone. The same on every rank, since it depends on sizes and owners only.
    """
    found: list[list[tuple[int, int]]] = []
    filled: dict[int, tuple[int, int]] = {}  # owner -> its round, and the numbers it has there
    for place, (size, owner) in enumerate(zip(sizes, owners, strict=True)):
        number, held = filled.get(owner, (0, 0))
        if held and held + size > at_once:
            number, held = number + 1, 0
        if number == len(found):
            found.append([])
        found[number].append((place, owner))
        filled[owner] = (number, held + size)
    return found


def _whole_shape(slot: Slot, team: Team) -> torch.Size:
    shard = getattr(slot.parameter, "shard", None)
    if shard is None:
        return slot.shape
    return torch.Size(sum(shard.parts) if dim == shard.dim else size for dim, size in enumerate(slot.shape))


def _size(slot: Slot, team: Team) -> int:
    return _whole_shape(slot, team).numel()


def _nothing(parameter: nn.Parameter) -> Tensor:
    return _nothing_of(parameter.shape, parameter.device)


def _nothing_of(shape: torch.Size, device: torch.device) -> Tensor:
    """Return a tensor of ``shape`` that takes no memory, to stand for one that is gone."""
    return torch.zeros(1, dtype=torch.float32, device=device).expand(shape)
