"""From a checkpoint into an engine's own memory, of any layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from megads.checkpoint.format.reader import Reader, Want
from megads.checkpoint.owned_shard import OwnedShard

AT_ONCE = 1 << 26
"""Numbers on the host on their way to a device; what is on the host goes there right away."""


def load_pieces(reader: Reader, pieces: Iterable[OwnedShard], kinds: Collection[str]) -> None:
    """Fill ``pieces`` with what the checkpoint holds of them. Not collective.

    Every rank reads what it answers for and no more, in the order in which it was written.
    Afterwards the engine's ``spread`` is to be called.

    Args:
        reader: of the checkpoint.
        pieces: of an engine.
        kinds: what is wanted; the others are set to zero, as before an optimizer's first step.

    Raises:
        CheckpointError: it is damaged, or of another model; some pieces are then filled and some are not.
    """
    waiting: list[tuple[Want, Tensor, Tensor]] = []
    on_their_way = 0
    for want, host, tensor in _wanted(list(pieces), kinds):
        waiting.append((want, host, tensor))
        on_their_way += 0 if host is tensor else host.numel()
        if on_their_way >= AT_ONCE:
            _fill(reader, waiting)
            waiting, on_their_way = [], 0
    _fill(reader, waiting)


def _wanted(pieces: list[OwnedShard], kinds: Collection[str]) -> Iterator[tuple[Want, Tensor, Tensor]]:
    """Yield what is to be read, the host's memory that it goes to, and where it goes from there."""
    for kind in pieces[0].tensors if pieces else ():
        for piece in pieces:
            whole = piece.tensors[kind]
            if kind not in kinds:
                whole.zero_()
                continue
            on_host = whole.device.type == "cpu"
            step = piece.count if on_host else AT_ONCE
            for at in range(0, piece.count, step):
                tensor = whole[at : at + step]
                host = tensor if on_host else torch.empty(tensor.shape, dtype=tensor.dtype)
                yield Want(piece.name, kind, piece.cut, piece.first + at, host.numpy()), host, tensor


def _fill(reader: Reader, waiting: list[tuple[Want, Tensor, Tensor]]) -> None:
    reader.fill(want for want, _, _ in waiting)
    for _, host, tensor in waiting:
        if host is not tensor:
            tensor.copy_(host)
