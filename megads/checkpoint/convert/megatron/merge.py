"""How Megatron cuts a matrix over tensor-parallel ranks, and orders queries, keys and values. No torch.

The rows of the fused projection, with ``np`` heads of ``hn`` channels and ``t`` ranks::

    version 0    [3, np/t, hn] on every rank
    version 1    [np, hn, 3]
    version 2+   [groups, np/groups + 2, hn]: the queries of a group, its key, its value

Keys and values of T5's attention to its encoder likewise, with 2 for 3 and no queries.

Ours are ``[q | k | v]``. The two halves of a gated MLP are cut apart: a rank has ``[gate; up]`` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.shard_layout import ShardLayout

Floats = NDArray[np.float32]
_Number = TypeVar("_Number", bound=np.generic)


def cut_out(whole: NDArray[_Number], cut: ShardLayout, rank: int, degree: int) -> NDArray[_Number]:
    """Return the slice of ``rank``."""
    if cut.dim is None or degree == 1:
        return whole
    if cut.dim == 1:
        return np.split(whole, degree, axis=1)[rank]
    parts = np.split(whole, np.cumsum(cut.parts)[:-1])
    return np.concatenate([np.split(part, degree)[rank] for part in parts])


def qkv_to_ours(
    shards: Sequence[NDArray[_Number]], version: float, heads: int, groups: int, width: int
) -> NDArray[_Number]:
    """Return rows ``[q | k | v]`` of the whole matrix, or of its bias, from its slices in rank order.

    ``version`` is the file's ``checkpoint_version``, 0 where it has none; ``groups`` are the key heads, before
    version 2 as many as the query ``heads``; ``width`` is the channels of a head.
    """
    parts: tuple[NDArray[_Number], ...]
    if version >= 2:
        rows = join_rows(shards)
        grouped = rows.reshape(groups, heads // groups + 2, width, *rows.shape[1:])
        parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
    elif version >= 1:
        rows = join_rows(shards)
        each = rows.reshape(heads, width, 3, *rows.shape[1:])
        parts = (each[:, :, 0], each[:, :, 1], each[:, :, 2])
    else:
        own = [shard.reshape(3, -1, *shard.shape[1:]) for shard in shards]
        parts = tuple(join_rows([each[part] for each in own]) for part in range(3))
    return np.concatenate([part.reshape(-1, *shards[0].shape[1:]) for part in parts])


def kv_to_ours(shards: Sequence[NDArray[_Number]], version: float, heads: int, width: int) -> NDArray[_Number]:
    """Return rows ``[k | v]`` of the whole matrix of keys and values, or of its bias; see :func:`qkv_to_ours`."""
    tail = shards[0].shape[1:]
    if version >= 1:
        rows = join_rows(shards)
        shape, axis = ((heads, 2, width), 1) if version >= 2 else ((heads, width, 2), 2)
        return np.concatenate([part.reshape(-1, *tail) for part in np.moveaxis(rows.reshape(*shape, *tail), axis, 0)])
    own = [shard.reshape(2, -1, *tail) for shard in shards]
    return np.concatenate([each[part] for part in range(2) for each in own])


def kv_to_theirs(rows: Floats, heads: int, width: int) -> Floats:
    """Return the rows of ``[k | v]`` in the order of version 2 and later, to be cut evenly over ranks."""
    parts = rows.reshape(2, heads, width, *rows.shape[1:])
    return np.ascontiguousarray(np.moveaxis(parts, 0, 1)).reshape(rows.shape)


def qkv_to_theirs(rows: Floats, heads: int, groups: int, width: int) -> Floats:
    """Return the rows of ``[q | k | v]`` in the order of version 2 and later, to be cut evenly over ranks."""
    tail = rows.shape[1:]
    q, k, v = np.split(rows, (heads * width, (heads + groups) * width))
    parts = [
        q.reshape(groups, -1, width, *tail),
        k.reshape(groups, 1, width, *tail),
        v.reshape(groups, 1, width, *tail),
    ]
    return np.concatenate(parts, axis=1).reshape(rows.shape)


def join_rows(shards: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Return the shards one below the other."""
    return np.concatenate(shards) if len(shards) > 1 else shards[0]


def with_rows(table: Floats, rows: int) -> Floats:
    """Return ``table`` with ``rows`` rows: the last are left off, or zeros are added."""
    if len(table) >= rows:
        return table[:rows]
    return np.concatenate([table, np.zeros((rows - len(table), *table.shape[1:]), np.float32)])
