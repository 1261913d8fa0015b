"""Optimizers whose rule sees a whole tensor: its norm, its blocks, or the matrix.

ZeRO hands an optimizer flat partitions that are cut anywhere, and tensor parallelism cuts the
matrix itself; a rule that looks at more than one number at a time silently becomes another one
there. Here one rank of each pipeline stage gathers a parameter and its gradient, steps it with the
library's class, and sends the new weight back. Parameters are shared out so that ranks have about
as many elements; each keeps the state of its own only, for every ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from megads.engine.optim.exchange import Batch, Slot, Team
from megads.plan.parts.whole_parameters import AT_ONCE

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer of parameter groups."""


@dataclass(frozen=True)
class Call:
    """The parameters of one call of ``step`` and one group.

    Attributes:
        key: a tensor that the engine has in the group then.
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
            parameter.data, parameter.grad = _nothing(parameter.shape, parameter.device), None
            if hasattr(parameter, "saved_data"):  # GaLore's 8-bit class keeps the whole weight there
                del parameter.saved_data


class WholeOptimizer(torch.optim.Optimizer):
    """Looks like an optimizer of flat partitions, and steps whole parameters.

    Args:
        makers: label of a group -> what makes the optimizer of its parameters.
        options: label of a group -> what its group of the library's optimizer has besides.
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
        self.sync: Callable[[Slot], None] | None = None
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    def attach(self, team: Team, calls: Sequence[Call], sync: Callable[[Slot], None] | None) -> None:
        """Learn where the parameters are, now that the engine has shared them out. Collective over the team.

        Args:
            team: the ranks of this pipeline stage.
            calls: every call and group, in the same order on every member.
            sync: joins the runs on all ranks after a step; None: the engine does.
        """
        self.sync = sync
        slots = [slot for call in calls for slot in call.slots]
        owners = share_out([slot.full_shape.numel() for slot in slots], team.size)
        owner_of = dict(zip((id(slot) for slot in slots), owners, strict=True))
        self.rounds = {}
        for call in calls:
            sizes = [slot.full_shape.numel() for slot in call.slots]
            owned_by = [owner_of[id(slot)] for slot in call.slots]
            made = [self._round(team, call, which) for which in rounds(sizes, owned_by, self.at_once)]
            self.rounds.setdefault(id(call.key), []).extend(made)

    def _round(self, team: Team, call: Call, which: list[tuple[int, int]]) -> _Round:
        batch = Batch(team, [call.slots[i] for i, _ in which], [owner for _, owner in which])
        batch.learn()
        weights = {i: nn.Parameter(_nothing(batch.slots[i].full_shape, team.device)) for i in batch.runs}
        optimizer = None
        if weights:
            group = {"params": list(weights.values()), **self.options.get(call.label, {})}
            optimizer = self.makers[call.label]([group])
        return _Round(batch, weights, optimizer)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step the parameters of the groups that are there now. Collective over the team."""
        assert closure is None
        assert self.rounds, "the optimizer is not attached"
        for group in self.param_groups:
            for tensor in group["params"]:
                for each in self.rounds.get(id(tensor), ()):
                    each.step(group["lr"], group["weight_decay"])
                    if self.sync is not None:
                        for slot in each.batch.slots:
                            self.sync(slot)

    # State

    def inner(self) -> Iterator[torch.optim.Optimizer]:
        """Yield the library's optimizers of what this rank steps."""
        yield from (each.optimizer for each in self._all_rounds() if each.optimizer is not None)

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and state of every parameter that this rank steps: tensors and plain numbers, by key."""
        for slot, parameter, optimizer in self._owned():
            found = pack(optimizer, parameter)
            if found:
                yield slot.name, found

    def load_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of every parameter that this rank steps; an empty one is as before the first step."""
        for slot, parameter, optimizer in self._owned():
            unpack(optimizer, parameter, state_of(slot.name))

    def _owned(self) -> Iterator[tuple[Slot, nn.Parameter, torch.optim.Optimizer]]:
        for each in self._all_rounds():
            for i, parameter in each.weights.items():
                assert each.optimizer is not None
                yield each.batch.slots[i], parameter, each.optimizer

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
    """Return (place, owner) of the parameters that are exchanged together: of each owner at most ``at_once`` elements.

    A parameter that is larger goes alone. The same on every rank, since it depends on sizes and owners only.
    """
    found: list[list[tuple[int, int]]] = []
    filled: dict[int, tuple[int, int]] = {}  # owner -> its round, and the elements it has there
    for place, (size, owner) in enumerate(zip(sizes, owners, strict=True)):
        number, held = filled.get(owner, (0, 0))
        if held and held + size > at_once:
            number, held = number + 1, 0
        if number == len(found):
            found.append([])
        found[number].append((place, owner))
        filled[owner] = (number, held + size)
    return found


def _nothing(shape: torch.Size, device: torch.device) -> Tensor:
    """Return a tensor of ``shape`` that takes no memory, to stand for one that is gone."""
    return torch.zeros(1, dtype=torch.float32, device=device).expand(shape)


COUNT = ".count"
GROUP = "group."
PROJECTOR = "projector"
SETTINGS = ("precondition_frequency", "shampoo_beta")
"""What SOAP keeps besides a parameter although it is set for all; it is what is set now that counts."""
COUNTED = ("step",)
"""Of a parameter group: what moves with every step."""

Value = Tensor | float | int | bool | None


def pack(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Value]:
    """Return the state of ``parameter``, as tensors and plain numbers by key; empty before its first step.

    Keys are ``<key>`` for tensors and numbers, ``<key>.<i>`` for those of lists (``<key>.count`` is their
    number), ``group.<key>`` for what the whole group counts, and ``projector.*`` for GaLore's object.
    """
    state = optimizer.state.get(parameter)
    if not state:
        return {}
    found: dict[str, Value] = {}
    for key, value in state.items():
        if key == PROJECTOR:
            found[f"{PROJECTOR}.ortho_matrix"] = value.ortho_matrix
        elif isinstance(value, (list, tuple)):
            found[f"{key}{COUNT}"] = len(value)
            found |= {f"{key}.{i}": each for i, each in enumerate(value) if isinstance(each, Tensor)}
        elif value is None or isinstance(value, (Tensor, float, int)):
            found[key] = value
        else:
            raise AssertionError(f"{type(optimizer).__name__} keeps a {type(value).__name__} under {key}")
    group = _group_of(optimizer, parameter)
    found |= {f"{GROUP}{key}": group[key] for key in COUNTED if key in group}
    return found


def unpack(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, found: Mapping[str, Value]) -> None:
    """Set the state of ``parameter`` to what :func:`pack` returned, on the parameter's device."""
    optimizer.state.pop(parameter, None)
    group = _group_of(optimizer, parameter)
    for key in COUNTED:
        group.pop(key, None)
    if not found:
        return
    state: dict[str, Any] = {}
    for key, value in found.items():
        here = value.to(parameter.device) if isinstance(value, Tensor) else value
        name, _, last = key.rpartition(".")
        if key.startswith(GROUP):
            group[key.removeprefix(GROUP)] = here
        elif name == PROJECTOR:
            state[PROJECTOR] = _projector(group, here)
        elif key.endswith(COUNT):
            state.setdefault(name, [[]] * int(found[key] or 0))
        elif name:
            parts = list(state.get(name) or [[]] * int(found[f"{name}{COUNT}"] or 0))
            parts[int(last)] = here
            state[name] = parts
        else:
            state[key] = here
    for key in SETTINGS:
        if key in state:
            state[key] = group["betas"][1] if group[key] is None else group[key]
    optimizer.state[parameter] = state


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Have every tensor of the state lie as a checkpoint would give it back: products of others round otherwise.

    Decompositions return transposed matrices, and the same elements in another memory layout
    are multiplied in another order.
    """
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.contiguous()
            elif isinstance(value, list):
                state[key] = [each.contiguous() if isinstance(each, Tensor) else each for each in value]
            elif key == PROJECTOR and value.ortho_matrix is not None:
                value.ortho_matrix = value.ortho_matrix.contiguous()


def _group_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(each is parameter for each in group["params"]))


def _projector(group: Mapping[str, Any], matrix: Value) -> Any:
    from galore_torch.galore_projector import GaLoreProjector

    options = {key: group[key] for key in ("update_proj_gap", "scale", "proj_type")}
    made = GaLoreProjector(group["rank"], **options)
    made.ortho_matrix = matrix
    return made
