"""What a rank sends: every collective of torch.distributed, by axis of the grid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Op of torch.distributed -> its name in docs/parallelism.md, and which argument holds the whole message.
OPS = {
    "allreduce_": ("all-reduce", 0),
    "reduce_": ("reduce", 0),
    "broadcast_": ("broadcast", 0),
    "_allgather_base_": ("all-gather", 0),
    "allgather_into_tensor_coalesced_": ("all-gather", 0),
    "allgather_": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "reduce_scatter_": ("reduce-scatter", 1),
    "alltoall_base_": ("all-to-all", 1),
    "alltoall_": ("all-to-all", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "barrier": ("barrier", 0),
}


class Traffic(TorchDispatchMode):
    """Counts, while it is entered, calls and elements: ``rows[axis, collective] = [calls, elements, bytes]``.

    The size of a message is that of the whole tensor that is reduced, gathered or scattered,
    and of this rank's part of an all-to-all.
    """

    def __init__(self, groups: Any):
        super().__init__()
        from megads.comm.groups import ENDS, GROUPS

        # Axes that partition the ranks alike share one group; it counts for the narrowest of them.
        order = ["tensor", "seq", "data", "pipe", "data_seq", ENDS, "model", "world"]
        assert set(order) == {*GROUPS, ENDS}
        self.axes: dict[frozenset[int], str] = {}
        for name in order:
            self.axes.setdefault(frozenset(groups.ranks(name)), name)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.elements: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func._schema.name.removeprefix("c10d::"), args)
        return func(*args, **(kwargs or {}))

    def _count(self, op: str, args: Any) -> None:
        name, place = OPS[op]
        group = next(a for a in args if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a._type()))
        ranks = frozenset(dist.get_process_group_ranks(dist.ProcessGroup.unbox(group)))
        if len(ranks) == 1:
            return  # nobody to send to
        key = (self.axes.get(ranks, f"ranks {sorted(ranks)}"), name)
        message = list(_tensors(args[place]))
        self.calls[key] += 1
        self.elements[key] += sum(tensor.numel() for tensor in message)
        self.bytes[key] += sum(tensor.nbytes for tensor in message)

    @property
    def rows(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return axis and collective -> (calls, elements), in order."""
        return {key: (self.calls[key], self.elements[key]) for key in sorted(self.calls)}


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
