"""What is flat: the parameters of one or more layers in one tensor, and the elements of it that a rank owns.

A unit is what one collective carries. Ranks of data x seq share its elements out in equal parts (arXiv
1910.02054): a rank steps what it owns. Parameters are views of the unit, so nothing is copied between the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from megads.comm.groups import Groups
from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.schema import RunConfig
from megads.engine.base import is_copy
from megads.engine.marks import mark_counted
from megads.engine.optim.build import labels, parameter_groups
from megads.models.gpt import GPT
from megads.parallel.tensor import Partition

ALIGNED = 64
"""Elements at whose multiples parameters and parts begin: 128 bytes in half precision, a line of every cache."""

UNITS = 4
"""Small layers are joined until a bucket is full, but not to fewer units: the last one overlaps with nothing."""


FROZEN = "frozen"
"""Label of parameters that no optimizer has."""


@dataclass(frozen=True)
class Place:
    """A parameter in its unit."""

    name: str  # the same in every layout
    parameter: nn.Parameter
    shape: torch.Size  # of this tensor-parallel rank's slice
    first: int  # index of its first element in the unit
    label: str  # of its optimizer group, see ``megads.engine.optim.build``

    @property
    def count(self) -> int:
        """How many elements it has."""
        return self.shape.numel()

    @property
    def last(self) -> int:
        """Index in the unit of the first element behind it."""
        return self.first + self.count

    @property
    def counts(self) -> bool:
        """Whether this tensor-parallel rank counts it in sums over the whole model."""
        return bool(self.parameter.tensor_model_parallel)  # type: ignore[attr-defined]

    def of(self, flat: Tensor) -> Tensor:
        """Return its view of a ``flat`` tensor of the unit."""
        return flat[self.first : self.last].view(self.shape)


@dataclass(eq=False)
class Run:
    """Neighbouring elements of one label that a rank owns: what an optimizer steps. It may be empty."""

    label: str
    first: int  # index in the unit
    weight: nn.Parameter  # ``[n]`` float32, a view of the masters; ``grad`` is one of the gradients


@dataclass(eq=False)
class Unit:
    """Parameters that are reduced and gathered together; or frozen ones, which are gathered only.

    Attributes:
        places: those of one label are neighbours.
        numel: a multiple of the ranks that share the unit; elements between the places are zeros.
        owned: the elements that this rank steps: its part, or all of them under ZeRO 0.
        weights: ``[numel]`` in the model's type; the parameters are views of it. Under ZeRO 3 its storage is empty
            unless somebody needs it.
        part: ``[len(owned)]`` in the model's type: what this rank sends to the others.
        masters: ``[len(owned)]`` float32; the same memory as ``part`` in a float32 model that is not offloaded.
        sums: ``[numel]`` float32, in which the gradients of a step are summed up; None where every micro-batch's are
            reduced (ZeRO 2 and 3).
        reduced: ``[len(owned)]`` float32 on the device, what the reduction leaves.
        gradients: what the optimizer steps with: ``reduced``, or its copy on the host.
        runs: one for every label of the unit, in the order of the places.
        gaps: the elements between the places.
        is_frozen: whether its parameters are not trained. It has no masters but its part, no gradients and no runs,
            and a rank owns its share under every ZeRO stage: that is what it reads of a checkpoint.
        chunk: of the model that it is in, of those that this rank holds.
    """

    name: str
    places: list[Place]
    numel: int
    owned: range
    weights: Tensor
    part: Tensor
    masters: Tensor
    sums: Tensor | None
    reduced: Tensor
    gradients: Tensor
    runs: list[Run]
    gaps: list[slice] = field(default_factory=list)
    is_frozen: bool = False
    chunk: int = 0

    def piece(self, place: Place) -> tuple[int, slice]:
        """Return what this rank owns of a parameter: its first element there, and where it is in ``masters``.

        The slice is empty where the rank owns nothing of it.
        """
        first, last = max(place.first, self.owned.start), min(place.last, self.owned.stop)
        if last <= first:
            return 0, slice(0, 0)
        return first - place.first, slice(first - self.owned.start, last - self.owned.start)

    def take_masters(self) -> None:
        """Set the masters to the weights, which were just filled."""
        if self.masters is not self.part:
            self.masters.copy_(self.part)


def stage_of(run: RunConfig, groups: Groups) -> int:
    """Return the ZeRO stage that is computed: of one rank, who has nobody to share with, 0."""
    return effective_zero_stage(run) if groups.data_seq_size > 1 else 0


@torch.no_grad()
def cut(module: GPT, run: RunConfig, groups: Groups, chunk: int = 0) -> list[Unit]:
    """Give the parameters of ``module``, which have no memory yet, places in units, in the order of their use.

    See ``hollow`` of :func:`megads.parallel.tensor.placed`. A copy of another stage's parameter gets memory of its
    own and is in no unit. ``chunk``: number of the module among those of this rank.
    """
    mark_counted(module, groups.tensor_rank)
    label_of = {each: group["label"] for group in parameter_groups(module, run) for each in group["params"]}
    sections: dict[str, dict[str, nn.Parameter]] = {}
    frozen: dict[str, dict[str, nn.Parameter]] = {}
    behind = {each.name for each in module.spec.output}
    for name, parameter in module.named_parameters():
        if is_copy(parameter):
            parameter.data = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            continue
        top, _, rest = name.partition(".")
        key = f"{top}.{rest.partition('.')[0]}" if top == "layers" else "output" if name in behind else "embedding"
        (sections if parameter.requires_grad else frozen).setdefault(key, {})[name] = parameter
    order = sorted(sections, key=lambda key: (key == "output") - (key == "embedding"))
    stage = stage_of(run, groups)
    found = [_frozen_unit(key, parameters, run, groups, stage) for key, parameters in frozen.items()]
    sizes = [sum(parameter.numel() for parameter in sections[key].values()) for key in order]
    members_of = [[i] for i in range(len(order))] if stage == 3 else joined(sizes, run.deepspeed.reduce_bucket_size)
    for members in members_of:
        name = order[members[0]] if len(members) == 1 else f"{order[members[0]]}..{order[members[-1]]}"
        parameters = {name: parameter for i in members for name, parameter in sections[order[i]].items()}
        ranked = sorted(parameters, key=lambda name: labels(run).index(label_of[parameters[name]]))
        places = _places({name: parameters[name] for name in ranked}, label_of)
        found.append(_unit(name, places, run, groups, stage))
    for unit in found:
        unit.chunk = chunk
    return found


def joined(sizes: list[int], bucket: int) -> list[list[int]]:
    """Return which neighbours of ``sizes`` are joined: up to ``bucket`` elements, but no more than a 4th of all."""
    limit = min(bucket, max(1, math.ceil(sum(sizes) / UNITS)))
    found: list[list[int]] = []
    filled = 0
    for i, size in enumerate(sizes):
        if found and filled + size <= limit:
            found[-1].append(i)
            filled += size
        else:
            found.append([i])
            filled = size
    return found


def _places(parameters: dict[str, nn.Parameter], label_of: dict[nn.Parameter, str]) -> list[Place]:
    found, first = [], 0
    for name, parameter in parameters.items():
        found.append(Place(name, parameter, parameter.shape, first, label_of[parameter]))
        first += -(-parameter.numel() // ALIGNED) * ALIGNED
    return found


def _laid_out(places: list[Place], groups: Groups, stage: int, *, is_shared: bool) -> tuple[Tensor, range, Tensor]:
    """Return the weights of a unit, of which the parameters are views now, what this rank owns of them, and that part.

    ``is_shared``: whether each rank of data x seq owns a share; else all of them.
    """
    sharers, example = groups.data_seq_size, places[0].parameter
    share = -(-places[-1].last // (sharers * ALIGNED)) * ALIGNED
    first = sharer(groups) * share
    owned = range(first, first + share) if is_shared else range(share * sharers)
    weights = torch.zeros(share * sharers, dtype=example.dtype, device=example.device)
    for place in places:
        held = place.parameter.untyped_storage().nbytes()
        assert held <= example.dtype.itemsize, f"{place.name} has memory of its own"
        place.parameter.data = place.of(weights)
    if stage < 3:
        return weights, owned, weights[owned.start : owned.stop]
    weights.untyped_storage().resize_(0)
    return weights, owned, torch.zeros(share, dtype=example.dtype, device=example.device)


def _frozen_unit(name: str, parameters: dict[str, nn.Parameter], run: RunConfig, groups: Groups, stage: int) -> Unit:
    places = _places(parameters, dict.fromkeys(parameters.values(), FROZEN))
    weights, owned, part = _laid_out(places, groups, stage, is_shared=True)
    nothing = torch.zeros(0, device=part.device)
    unit = Unit(name, places, len(weights), owned, weights, part, part, None, nothing, nothing, runs=[], is_frozen=True)
    _set_partitions(unit, stage)
    return unit


def _set_partitions(unit: Unit, stage: int) -> None:
    """Mark what this rank holds of the parameters of a unit whose weights are not there between the passes."""
    for place in unit.places if stage == 3 else ():
        at, here = unit.piece(place)
        place.parameter.partition = Partition(place.shape, unit.part[here], at)  # type: ignore[attr-defined]


def _unit(name: str, places: list[Place], run: RunConfig, groups: Groups, stage: int) -> Unit:
    weights, owned, part = _laid_out(places, groups, stage, is_shared=stage > 0)
    numel, device, dtype = len(weights), weights.device, weights.dtype
    host = run.deepspeed.offload_optimizer != "none"
    pinned = host and run.deepspeed.offload_pin_memory and device.type != "cpu"
    sums = torch.zeros(numel, device=device) if stage < 2 else None
    reduced = torch.zeros(len(owned), device=device) if sums is None else sums[owned.start : owned.stop]
    masters, gradients = part, reduced
    if host or dtype != torch.float32:
        masters = torch.zeros(len(owned), device="cpu" if host else device, pin_memory=pinned)
    if host:
        gradients = torch.zeros(len(owned), pin_memory=pinned)
    unit = Unit(name, places, numel, owned, weights, part, masters, sums, reduced, gradients, [])
    unit.runs, unit.gaps = list(_runs(unit)), list(_gaps(places, numel))
    _set_partitions(unit, stage)
    return unit


def sharer(groups: Groups) -> int:
    """Return this rank's number among those that share every unit: the ranks of data x seq."""
    return groups.data_rank * groups.seq_size + groups.seq_rank


def _runs(unit: Unit) -> Iterator[Run]:
    for label in dict.fromkeys(place.label for place in unit.places):
        mine = [place for place in unit.places if place.label == label]
        first = max(mine[0].first, unit.owned.start)
        last = max(first, min(mine[-1].last, unit.owned.stop))
        here = slice(first - unit.owned.start, last - unit.owned.start) if last > first else slice(0, 0)
        weight = nn.Parameter(unit.masters[here])
        weight.grad = unit.gradients[here]
        yield Run(label, first, weight)


def _gaps(places: list[Place], numel: int) -> Iterator[slice]:
    ends = [*(place.first for place in places[1:]), numel]
    for place, end in zip(places, ends, strict=True):
        if place.last < end:
            yield slice(place.last, end)


def partition_of(parameter: nn.Parameter) -> Partition | None:
    """Return what this rank holds of a parameter whose unit is empty (ZeRO 3), None of others."""
    return getattr(parameter, "partition", None)
