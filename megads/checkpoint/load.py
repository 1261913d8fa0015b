"""From a checkpoint into an engine's own memory, of any layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from megads.checkpoint.format.reader import Reader, Want
from megads.checkpoint.owned_shard import OwnedShard

AT_ONCE = 1 << 26
"""Elements on the host on their way to a device; what is on the host goes there right away."""


def load_shards(reader: Reader, shards: Iterable[OwnedShard], kinds: Collection[str]) -> None:
    """Fill an engine's ``shards`` with what the checkpoint holds of ``kinds``, with zeros for other kinds.

    Not collective: every rank reads its own shards and no more, in the order in which they were written.
    Afterwards the engine copies its master weights to its other weights (``sync_from_masters`` of its state).

    Raises:
        CheckpointError: it is damaged, or of another model; some shards are then filled and some are not.
    """
    waiting: list[tuple[Want, Tensor, Tensor]] = []
    on_their_way = 0
    for want, host, tensor in _wanted(list(shards), kinds):
        waiting.append((want, host, tensor))
        on_their_way += 0 if host is tensor else host.numel()
        if on_their_way >= AT_ONCE:
            _fill(reader, waiting)
            waiting, on_their_way = [], 0
    _fill(reader, waiting)


def _wanted(shards: list[OwnedShard], kinds: Collection[str]) -> Iterator[tuple[Want, Tensor, Tensor]]:
    """Yield what is to be read, the host's memory that it goes to, and where it goes from there."""
    for kind in shards[0].tensors if shards else ():
        for shard in shards:
            whole = shard.tensors[kind]
            if kind not in kinds:
                whole.zero_()
                continue
            on_host = whole.device.type == "cpu" and whole.dtype == torch.float32
            step = shard.count if on_host else AT_ONCE
            for at in range(0, shard.count, step):
                tensor = whole[at : at + step]
                host = tensor if on_host else torch.empty(tensor.shape)
                yield Want(shard.name, kind, shard.cut, shard.first + at, host.numpy()), host, tensor


def _fill(reader: Reader, waiting: list[tuple[Want, Tensor, Tensor]]) -> None:
    reader.fill(want for want, _, _ in waiting)
    for _, host, tensor in waiting:
        if host is not tensor:
            tensor.copy_(host)
