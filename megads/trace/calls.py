"""Every collective that torch is asked for, and who would have answered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from megads.comm.groups import Groups

KINDS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
    "alltoall_": "all-to-all",
    "reduce_": "reduce",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
    "barrier": "barrier",
}
"""Name in torch -> the word for it, which is that of ``megads.plan.traffic``."""

ALONE = ("reduce_", "send", "recv_", "recv_any_source_", "barrier", "alltoall_base_", "gather_")
"""What returns no tensors but its work only."""

BUILD, FORWARD, BACKWARD, UPDATE = "build", "forward", "backward", "update"
PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": UPDATE}
"""Section of ``megads.timing.sections`` -> phase."""


@dataclass(frozen=True, order=True)
class Call:
    """One kind of collective.

    Attributes:
        phase: in which it is asked for.
        axis: of the grid, as ``megads.plan.traffic`` names them; ``world`` or ``model`` where it is none of them.
        kind: one of :data:`KINDS`.
        ranks: of the group, global ones, in its order.
        num_bytes: of the whole tensor that is reduced, gathered, exchanged or sent.
    """

    phase: str
    axis: str
    kind: str
    ranks: tuple[int, ...]
    num_bytes: int


_READ = {torch.bool: False, torch.uint8: 0, torch.int32: 1, torch.int64: 1}
"""What the host reads of a tensor, by its type; 1.0 of others."""


class Phases:
    """A :class:`megads.timing.sections.Clock` that only knows what runs."""

    def __init__(self) -> None:
        self.section, self.phase = "", BUILD

    def switch(self, name: str) -> str:
        """Begin the section ``name``; a collective belongs to the phase that it interrupts."""
        before, self.section = self.section, name
        self.phase = PHASES.get(name, self.phase)
        return before


class Recorder(TorchDispatchMode):
    """Counts collectives, which send nothing, and answers what the host reads of a device.

    What it reads is 1, of flags 0: a loss and a norm of 1, gradients without overflow.
    """

    def __init__(self, groups: Groups, phases: Phases):
        super().__init__()
        self.phases, self.calls = phases, Counter[Call]()
        self.axes = axes_of(groups)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            return self._answer(func._schema.name.split("::")[1], args)
        if func is torch.ops.aten._local_scalar_dense.default:
            return _READ.get(args[0].dtype, 1.0)
        if func is torch.ops.aten.equal.default:
            return True
        return func(*args, **(kwargs or {}))

    def _answer(self, name: str, args: Any) -> Any:
        from torch._C._distributed_c10d import FakeWork

        ranks = next(_ranks(each) for each in args if isinstance(each, torch.ScriptObject))
        largest = max((each.numel() * each.element_size() for each in _tensors(args)), default=0)
        kind, axis = KINDS.get(name, name), self.axes.get(ranks, "other")
        if axis == "seq" and kind != "all-to-all":  # the same ranks are data x seq where DP is 1
            axis = "data"
        self.calls[Call(self.phases.phase, axis, kind, ranks, largest)] += 1
        work = FakeWork().boxed()
        return work if name in ALONE else (args[0], work)


def axes_of(groups: Groups) -> Mapping[tuple[int, ...], str]:
    """Return the axis of every group of more than one rank that ``groups`` knows, by its ranks."""
    names = {"tensor": "tensor", "seq": "seq", "data_seq": "data", "data": "data", "pipe": "pipe", "ends": "pipe"}
    found: dict[tuple[int, ...], str] = {}
    for name, axis in {**names, "model": "model", "world": "world"}.items():
        ranks = groups.ranks(name)
        if len(ranks) > 1:
            found.setdefault(ranks, axis)
    return found


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(group)))


def _tensors(found: Any) -> Iterator[Any]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _tensors(each)
