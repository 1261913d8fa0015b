"""What passes between an engine and a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from megads.checkpoint.format.shard_layout import ShardLayout


@dataclass(frozen=True)
class OwnedShard:
    """Consecutive elements of one parameter that this rank saves and loads.

    The ranks that share a slice hold different shards, which together are all of it. What is
    written to ``tensors`` is in the engine.

    Attributes:
        name: of the parameter, the same in every layout.
        cut: the slice of this tensor-parallel rank.
        first: element of the flattened slice.
        tensors: ``"weight"`` (the float32 master) and the optimizer's moments -> ``[count]``
            float32, views of the engine's own memory.
    """

    name: str
    cut: ShardLayout
    first: int
    tensors: Mapping[str, Tensor]

    @property
    def count(self) -> int:
        """Elements of the shard."""
        return self.tensors["weight"].numel()

    @property
    def is_mine(self) -> bool:
        """Whether this rank saves it: what is whole on every tensor-parallel rank is saved by the first."""
        return self.cut.rank == 0 or not self.cut.is_whole
