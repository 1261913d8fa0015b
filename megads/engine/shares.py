"""What a rank answers for of weights that all ranks of data x seq hold, and which slice of the whole it has."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.comm.groups import Groups
from megads.engine.base import whole_shape
from megads.parallel.tensor import Shard, full_shape


def layout_of(parameter: nn.Parameter, groups: Groups) -> ShardLayout:
    """Return which slice of the whole ``parameter`` this tensor-parallel rank holds."""
    shard: Shard | None = getattr(parameter, "shard", None)
    dim, parts = (shard.dim, shard.parts) if shard else (None, ())
    shape = tuple(full_shape(whole_shape(parameter), shard))
    return ShardLayout(shape, dim, parts, groups.tensor_rank, groups.tensor_size)


def share_of(count: int, groups: Groups) -> slice:
    """Return what this rank answers for of ``count`` elements that every rank of data x seq holds."""
    group = groups.data_seq
    size = -(-count // groups.data_seq_size)
    first = min(count, size * (dist.get_rank(group) if group is not None else 0))
    return slice(first, min(count, first + size))


def join_shares(tensor: Tensor, groups: Groups) -> None:
    """Set ``tensor`` to what the ranks of data x seq hold in their shares of it. Collective over them."""
    if groups.data_seq is None:
        return
    flat = tensor.view(-1)
    mine = flat[share_of(flat.numel(), groups)]
    size = -(-flat.numel() // groups.data_seq_size)
    everyone = flat.new_empty(size * groups.data_seq_size)
    padded = torch.nn.functional.pad(mine, (0, size - mine.numel()))
    dist.all_gather_into_tensor(everyone, padded, group=groups.data_seq)
    flat.copy_(everyone[: flat.numel()])
