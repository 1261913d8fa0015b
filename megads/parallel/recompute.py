"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Recompute:
    """What is computed again; the default keeps everything."""

    def core(self, attend: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return ``attend(*inputs)``, the attention core, recomputed or not."""
        return attend(*inputs)

    def layers(self, blocks: Sequence[Step]) -> list[Step]:
        """Return steps that do what ``blocks``, the layers of one stage, do one after the other."""
        return list(blocks)
