"""Linear layers with adapters of low rank, split as the layers are (LoRA, arXiv 2106.09685).

Of a layer whose output features are split A is whole and B is split; else A is split and B is whole. What ranks send
for them has the adapters' rank as its width, not the model's::

                     forward                             backward
    column           nothing                             all-reduce of the gradient of A x
    row              all-reduce of A x                   nothing
    scattered        all-gather (column) or              reduce-scatter (column) or all-gather (row),
                     reduce-scatter (row) of A x         and A's or B's gradient is summed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from megads.comm.rng import Draws
from megads.families.lora import Adapter
from megads.parallel.collectives import (
    copy_to_group,
    gather_from_group,
    partial_over,
    reduce_from_group,
    scatter_from_group,
    with_summed_gradient,
)
from megads.parallel.tensor import ColumnParallelLinear, Group, RowParallelLinear, Shard, parameter, whole_linear

_DRAWS: ContextVar[tuple[Draws | None, int | str]] = ContextVar("draws", default=(None, 0))


@contextmanager
def drawing(draws: Draws | None, layer: int | str) -> Iterator[None]:
    """Have the adapters' dropouts in the block draw by ``draws``, as those of ``layer``."""
    token = _DRAWS.set((draws, layer))
    try:
        yield
    finally:
        _DRAWS.reset(token)


@dataclass(frozen=True)
class Options:
    """What the adapters of a projection are."""

    name: str  # of the projection within the layer
    adapter: Adapter
    rank: int
    scale: float
    dropout: float = 0.0

    def dropped(self, x: Tensor, *, is_training: bool, is_split: bool) -> Tensor:
        """Return ``x`` with dropout; ``is_split``: whether tensor ranks hold different parts of it."""
        if not (self.dropout and is_training):
            return x
        draws, layer = _DRAWS.get()
        if draws is not None:
            draws.begin(f"{layer}.{self.name}.lora", is_split=is_split)
        return F.dropout(x, self.dropout)


class AdaptedColumn(ColumnParallelLinear):
    """A :class:`ColumnParallelLinear` of ``y = W x + b + scale * B A x``.

    Its ``lora_a`` are the A's of all parts on top of each other, ``lora_b`` the B's behind each other; parts without an
    adapter are in neither.
    """

    def __init__(
        self,
        in_features: int,
        out_features: Sequence[int],
        group: Group,
        options: Options,
        *,
        bias: bool = True,
        scattered: bool = False,
        chunks: int = 1,
    ):
        super().__init__(in_features, out_features, group, bias=bias, scattered=scattered, chunks=chunks)
        self.options, adapter = options, options.adapter
        degree = 1 if group is None else group.size()
        self.widths = Shard(0, tuple(out_features)).local_parts(degree)  # of all parts, here
        outputs = tuple(out_features[i] for i in adapter.parts)
        self.lora_a = parameter((sum(adapter.ranks), in_features), None)
        self.lora_b = parameter((sum(outputs), options.rank), Shard(0, outputs), group)
        if scattered:
            partial_over(self.lora_a, group)

    def forward(self, x: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Return this rank's slice of the output."""
        return super().forward(x, use) + self.change(x)

    def change(self, x: Tensor) -> Tensor:
        """Return what the adapters add to the output."""
        options, adapter = self.options, self.options.adapter
        x = options.dropped(x, is_training=self.training, is_split=self.scattered)
        if self.scattered and self.group is not None:
            (a,) = with_summed_gradient(self.lora_a)
            low = gather_from_group(whole_linear(x, a, None), self.group)
        else:
            low = copy_to_group(whole_linear(x, self.lora_a, None), self.group)
        low = low * options.scale
        if adapter.is_shared:
            return whole_linear(low, self.lora_b, None)
        lows = iter(low.split(options.rank, dim=-1))
        rows = iter(self.lora_b.split([self.widths[i] for i in adapter.parts]))
        return torch.cat(
            [
                F.linear(next(lows), next(rows)) if i in adapter.parts else low.new_zeros(*low.shape[:-1], width)
                for i, width in enumerate(self.widths)
            ],
            dim=-1,
        )


class AdaptedRow(RowParallelLinear):
    """A :class:`RowParallelLinear` of ``y = W x + b + scale * B A x``."""

    def __init__(
        self,
        in_features: int,
        width: int,
        group: Group,
        options: Options,
        *,
        bias: bool = True,
        scattered: bool = False,
        chunks: int = 1,
    ):
        super().__init__(in_features, width, group, bias=bias, scattered=scattered, chunks=chunks)
        self.options = options
        self.lora_a = parameter((options.rank, in_features), Shard(1, (in_features,)), group)
        self.lora_b = parameter((width, options.rank), None)
        if scattered:
            partial_over(self.lora_b, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return the whole output, or this rank's part of the sequence."""
        y, options = super().forward(x), self.options
        x = options.dropped(x, is_training=self.training, is_split=True)
        low = whole_linear(x, self.lora_a, None)
        if self.scattered and self.group is not None:
            (b,) = with_summed_gradient(self.lora_b)
            low = scatter_from_group(low, self.group)
        else:
            b = self.lora_b
            low = reduce_from_group(low, self.group)
        return y + whole_linear(low * options.scale, b, None)
