"""T5's relative positions (arXiv 1910.10683): a bias of every head by how far a key is from its query.

Distances share buckets: near ones have one each, farther ones share them on a logarithmic scale. The layers of a
stack share one table ``[buckets, heads]``. The bias of a head is ``[queries, keys]`` by nature, and so is what
attention is given: ``[1, heads, queries, keys]`` of the heads at hand, never once more for every row of a batch, made
inside the attention core (``RECOMPUTE=selective`` does not keep it) from the ``queries + keys - 1`` values that differ.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.parallel.tensor import Group, Shard, parameter

ALIGNED = 8
"""Channels that are added where one would do: fused kernels want rows of a multiple of this."""

HIDDEN_KEY = -3e4
"""Added to the score of a key that is padding; its weight is 0 in every type, and fp16 can hold it."""


class RelativeTable(nn.Module):
    """A bias for every bucket and head, ``[buckets, heads / t]``: a tensor-parallel rank holds its heads'."""

    def __init__(self, buckets: int, heads: int, group: Group):
        super().__init__()
        self.weight = parameter((buckets, heads), Shard(1, (heads,)), group)

    def forward(self) -> Tensor:
        """Return the table. A module of its own, because ZeRO 3 gathers what a module is called for."""
        return self.weight.view_as(self.weight)


def bucket_of(distance: Tensor, buckets: int, longest: int, *, is_causal: bool) -> Tensor:
    """Return the bucket of every ``distance`` (place of the key less that of the query), int64 likewise.

    In both directions half of the buckets are for keys behind the query; causal, all keys behind it
    have bucket 0, which carries no meaning. Distances of ``longest`` and more share the last bucket.
    """
    if is_causal:
        first, away = torch.zeros_like(distance), (-distance).clamp(min=0)
    else:
        buckets //= 2
        first, away = (distance > 0) * buckets, distance.abs()
    exact = buckets // 2
    # In float32, as models were trained with: the last bit decides at the borders of a bucket.
    scale = torch.log(away.clamp(min=1).float() / exact) / math.log(longest / exact) * (buckets - exact)
    far = (exact + scale.to(torch.int64)).clamp(max=buckets - 1)
    return first + torch.where(away < exact, away, far)


def relative_bias(table: Tensor, queries: int, keys: int, longest: int, *, is_causal: bool) -> Tensor:
    """Return ``[1, heads, queries, keys]`` of a ``table`` ``[buckets, heads]``; both begin at place 0.

    Causal, a key behind its query has minus infinity.
    """
    distance = torch.arange(1 - queries, keys, device=table.device)
    values = table[bucket_of(distance, len(table), longest, is_causal=is_causal)]
    if is_causal:
        values = values.masked_fill((distance > 0).unsqueeze(1), -math.inf)
    # Row i of the result is keys values from queries - 1 - i on: windows, in reverse. Sums of gradients are in order.
    return values.t().unfold(1, keys, 1).flip(1).unsqueeze(0)


def distant_bias(table: Tensor, longest: int, distance: Tensor) -> Tensor:
    """Return ``[B, heads, Q, K]``, what :func:`relative_bias` has for causal ``distance`` ``[B, Q, K]`` of any kind."""
    values = table[bucket_of(distance, len(table), longest, is_causal=True)]
    return values.masked_fill((distance > 0).unsqueeze(3), -math.inf).permute(0, 3, 1, 2)


def attend_relative(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, real: Tensor | None, dropout: float) -> Tensor:
    """Return ``softmax(q k^T + bias) v`` ``[B, S, heads, D]`` of ``[B, S, heads, D]`` each; scores are not scaled.

    Args:
        bias: ``[1, heads, S, S]``.
        real: ``[B, 1, 1, S]`` bool, whether a key is real; None: all are.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if real is not None:
        # One more channel, 1 in the queries, carries what a mask of every row would: no bias for each row.
        hidden = torch.where(real, 0.0, HIDDEN_KEY).to(k.dtype).transpose(2, 3)
        k = torch.cat([k, F.pad(hidden, (0, ALIGNED - 1)).expand(*k.shape[:3], ALIGNED)], dim=3)
        q = torch.cat([q, F.pad(q.new_ones(*q.shape[:3], 1), (0, ALIGNED - 1))], dim=3)
    shared = q.shape[1] != k.shape[1]
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0, enable_gqa=shared)
    return mixed.transpose(1, 2)
