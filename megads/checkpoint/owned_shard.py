"""What passes between an engine and a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megads.checkpoint.format.blocks import Entry
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.whole_state import WholeParamState

CHUNK = 1 << 24
"""Bytes that pass from a device to the host together."""


@dataclass(frozen=True)
class OwnedShard:
    """A run of consecutive numbers of one parameter, for which this rank answers.

    The ranks that share a slice hold different runs, which together are all of it. What is
    written to ``tensors`` is in the engine.

    Attributes:
        name: of the parameter, the same in every layout.
        cut: the slice of this tensor-parallel rank.
        first: of the flattened slice.
        tensors: ``"weight"`` (the float32 master) and the optimizer's moments -> ``[count]``
            float32, views of the engine's own memory.
    """

    name: str
    cut: ShardLayout
    first: int
    tensors: Mapping[str, Tensor]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return self.tensors["weight"].numel()

    @property
    def is_mine(self) -> bool:
        """Whether this rank saves it: what is whole on every tensor-parallel rank is saved by the first."""
        return self.cut.rank == 0 or not self.cut.is_whole


def entry(key: str, tensor: Tensor) -> Entry:
    """Return what writes a tensor to a file; from an accelerator it comes in chunks."""
    flat = tensor.detach().reshape(-1)

    def chunks() -> Iterator[NDArray[np.generic]]:
        step = max(1, CHUNK // flat.element_size())
        for at in range(0, flat.numel(), step):
            yield flat[at : at + step].cpu().numpy()

    return Entry(key, np.dtype(_TYPES[flat.dtype]), flat.numel(), chunks)


_TYPES = {torch.float32: "<f4", torch.uint8: "u1"}
_NAMES = {torch.float32: "F32", torch.uint8: "U8"}


def kept_of(
    rank: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, float | int | bool | None]
) -> WholeParamState:
    """Return what the manifest says of the state of a parameter that the file of ``rank`` has."""
    told = {key: (_NAMES[tensor.dtype], tuple(tensor.shape)) for key, tensor in tensors.items()}
    return WholeParamState(rank, told, dict(numbers))
