"""Ulysses sequence parallelism (arXiv 2309.14509): who holds which tokens, and the exchange of heads.

Outside attention a sequence rank holds a part of the tokens with all heads, inside it all
tokens of a part of the heads. One all-to-all leads in, with queries, keys and values
together, and one leads out; their backward passes are one all-to-all each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.errors import ConfigError
from megads.parallel.opaque import opaque

NOT_COUNTED = -100
"""The label of a token that takes no part in the loss, as in ``torch.nn.functional.cross_entropy``."""


def split_batch(batch: Tensor, groups: Groups, eod: int | None = None) -> tuple[Tensor, Tensor]:
    """Return this sequence rank's tokens and the labels that follow them.

    Args:
        batch: ``[B, S + 1]`` int64, the same on every rank of the sequence and tensor axes.
        groups: for the sequence axis; S must be a multiple of its size.
        eod: labels of tokens that follow this one do not count; None: all count.

    Returns:
        tokens and labels, each ``[B, S / SP]``: positions ``r * S/SP .. (r + 1) * S/SP`` on
        sequence rank ``r``; a label that does not count is :data:`NOT_COUNTED`.

    Raises:
        ConfigError: the sequence cannot be cut into equal parts.
    """
    tokens, labels = batch[:, :-1], batch[:, 1:]
    mine = rank_tokens(tokens.shape[1], groups)
    if eod is not None:
        labels = labels.masked_fill(tokens == eod, NOT_COUNTED)
    return tokens[:, mine], labels[:, mine]


def rank_tokens(whole: int, groups: Groups, name: str = "SEQ") -> slice:
    """Return which of the ``whole`` tokens of a row, the value of ``name``, this sequence rank has.

    Raises:
        ConfigError: the sequence cannot be cut into equal parts.
    """
    size = groups.seq_size
    if whole % size:
        raise ConfigError(
            f"{name}={whole} cannot be split over SP={size} ranks; use {name}={-(-whole // size) * size} or an SP "
            f"that divides {whole}"
        )
    length = whole // size
    return slice(groups.seq_rank * length, (groups.seq_rank + 1) * length)


@dataclass(frozen=True)
class HeadShare:
    """The heads that one sequence rank computes, as numbers among its tensor rank's heads."""

    queries: range
    keys: range  # of keys and of values: those that its queries use
    ratio: int  # query heads that share a key/value head

    @property
    def uses(self) -> tuple[int, ...]:
        """How many of ``queries`` use each of ``keys``, in order."""
        shared = (range(key * self.ratio, (key + 1) * self.ratio) for key in self.keys)
        return tuple(min(heads.stop, self.queries.stop) - max(heads.start, self.queries.start) for heads in shared)


@cache
def share_heads(num_heads: int, num_kv_heads: int, size: int) -> tuple[HeadShare, ...]:
    """Return the heads of each of ``size`` sequence ranks.

    Every query head goes to one rank; shares are runs of neighbours whose lengths differ by
    one at most. With its queries a rank gets the key and value heads they use: each goes to
    one rank where ``size`` divides ``num_kv_heads``, and elsewhere the longer shares lie
    where the fewest go to several.

    Args:
        num_heads: query heads of one tensor rank.
        num_kv_heads: its key/value heads, a divisor of ``num_heads``.
        size: the sequence-parallel degree.

    Raises:
        ConfigError: more ranks than query heads.
    """
    if size > num_heads:
        raise ConfigError(
            f"SP={size} ranks cannot share {num_heads} query heads (HEADS / TP), each rank "
            f"needs one; use SP={num_heads} or less"
        )
    ratio = num_heads // num_kv_heads
    short, num_long = divmod(num_heads, size)
    # best[n]: with n long shares so far, the key heads sent and where the shares end.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for _ in range(size):
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for longs, (sent, ends) in best.items():
            for long in (1, 0) if longs < num_long else (0,):
                start, stop = ends[-1], ends[-1] + short + long
                total = sent + (stop - 1) // ratio - start // ratio + 1
                if longs + long not in reached or total < reached[longs + long][0]:
                    reached[longs + long] = (total, (*ends, stop))
        best = reached
    ends = best[num_long][1]
    return tuple(
        HeadShare(range(start, stop), range(start // ratio, (stop - 1) // ratio + 1), ratio)
        for start, stop in itertools.pairwise(ends)
    )


def spread_heads(x: Tensor, uses: Sequence[int]) -> Tensor:
    """Return ``[B, S, sum(uses), D]``: head ``i`` of ``x``, which is ``[B, S, len(uses), D]``, ``uses[i]`` times."""
    return torch.cat([head.expand(-1, -1, use, -1) for head, use in zip(x.split(1, dim=2), uses, strict=True)], dim=2)


class HeadExchange:
    """The two all-to-alls around attention, on one rank of a sequence-parallel group.

    Raises:
        ConfigError: more ranks than query heads.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, group: dist.ProcessGroup):
        shares = share_heads(num_heads, num_kv_heads, group.size())
        self.group, self.share = group, shares[group.rank()]
        queries = tuple(share.queries for share in shares)
        keys = tuple(share.keys for share in shares)
        self._queries, self._keys = _listed((queries,)), _listed((keys, keys))
        self._all = _listed((queries, keys, keys))

    def to_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map every head of ``[B, S/SP, heads, D]`` to this rank's heads of ``[B, S, heads, D]``.

        Queries, keys and values may have different numbers of heads; the results are views
        of one tensor in memory order ``[S, B, heads, D]``.
        """
        q, k, v = _ToHeads.apply(self.group, self._all, q, k, v)
        return q, k, v

    def queries_to_heads(self, q: Tensor) -> Tensor:
        """Do what :meth:`to_heads` does for queries alone: keys are of another sequence."""
        (q,) = _ToHeads.apply(self.group, self._queries, q)
        return q

    def keys_to_heads(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Do what :meth:`to_heads` does for keys and values alone."""
        k, v = _ToHeads.apply(self.group, self._keys, k, v)
        return k, v

    def to_tokens(self, x: Tensor) -> Tensor:
        """Map this rank's query heads ``[B, S, heads, D]`` to all heads of its tokens, ``[B, S/SP, heads, D]``."""
        return _ToTokens.apply(self.group, self._queries, x)


Shares = tuple[tuple[range, ...], ...]
"""Of every part that travels together (queries, keys, values), the heads that each rank computes."""

Listed = tuple[int, ...]
"""Shares as an operator takes them: the number of parts, then begin and end of every range."""


def _listed(shares: Shares) -> Listed:
    return len(shares), *(end for ranges in shares for heads in ranges for end in (heads.start, heads.stop))


@cache
def _shares(listed: Listed) -> Shares:
    ranges = [range(*ends) for ends in zip(listed[1::2], listed[2::2], strict=True)]
    size = len(ranges) // listed[0]
    return tuple(tuple(ranges[first : first + size]) for first in range(0, len(ranges), size))


def _send_to_heads(parts: Sequence[Tensor], listed: Listed, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """Map parts ``[B, s, heads, D]`` to this rank's shares of them, ``[B, S, share, D]``."""
    mine = range(1 + 2 * group.rank(), len(listed), 2 * group.size())
    counts = [listed[place + 1] - listed[place] for place in mine]
    return _sent_to_heads(parts, listed, group).transpose(0, 1).split(counts, dim=2)


@opaque("(Tensor[] parts, int[] listed, str group) -> Tensor")
def _sent_to_heads(parts: Sequence[Tensor], listed: Listed, group: dist.ProcessGroup) -> Tensor:
    """Do what :func:`_send_to_heads` does, without cutting its result, ``[S, B, all shares, D]``."""
    shares = _shares(tuple(listed))
    batch, length, _, width = parts[0].shape
    counts, mine = _counts(shares), [len(ranges[group.rank()]) for ranges in shares]
    sent = parts[0].new_empty(sum(counts) * length * batch * width)
    for block, heads, _ in _blocks(sent, parts, shares):
        block.copy_(heads)
    received = sent.new_empty(group.size() * length, batch, sum(mine), width)
    unit = length * batch * width
    dist.all_to_all_single(
        received.view(-1), sent, [sum(mine) * unit] * group.size(), [n * unit for n in counts], group=group
    )
    return received


@opaque("(Tensor[] parts, int[] listed, str group) -> Tensor[]")
def _send_to_tokens(parts: Sequence[Tensor], listed: Listed, group: dist.ProcessGroup) -> list[Tensor]:
    """Map this rank's shares ``[B, S, share, D]`` to parts ``[B, s, heads, D]``, summing heads that came from several.

    The transpose of :func:`_send_to_heads`, and where every head goes to one rank its inverse.
    """
    shares = _shares(tuple(listed))
    batch, whole, _, width = parts[0].shape
    length, counts = whole // group.size(), _counts(shares)
    unit = length * batch * width
    if len(parts) == 1:
        sent = parts[0].transpose(0, 1).contiguous()
    else:
        sent = parts[0].new_empty(whole, batch, counts[group.rank()], width)
        torch.cat([part.transpose(0, 1) for part in parts], dim=2, out=sent)
    received = sent.new_empty(sum(counts) * unit)
    dist.all_to_all_single(
        received, sent.view(-1), [n * unit for n in counts], [counts[group.rank()] * unit] * group.size(), group=group
    )
    results = []
    for ranges in shares:
        make = sent.new_empty if _is_cut(ranges) else sent.new_zeros
        results.append(make(batch, length, ranges[-1].stop, width))
    for block, heads, alone in _blocks(received, results, shares):
        heads.copy_(block) if alone else heads.add_(block)
    return results


def _counts(shares: Shares) -> list[int]:
    """Return how many heads each rank gets, all parts together."""
    return [sum(len(share) for share in of_rank) for of_rank in zip(*shares, strict=True)]


def _is_cut(ranges: tuple[range, ...]) -> bool:
    """Return whether every head goes to one rank only."""
    return sum(len(share) for share in ranges) == ranges[-1].stop


def _blocks(buffer: Tensor, parts: Sequence[Tensor], shares: Shares) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield pairs of views that are the same heads in the buffer of an exchange and in a part ``[B, s, heads, D]``.

    The buffer holds a block for each rank, ``[s, B, heads, D]`` with the rank's shares of all
    parts side by side. As few pairs as the shares allow: one for a part whose heads are cut
    evenly. The third item says whether every head of the part goes to one rank only.
    """
    batch, length, _, width = parts[0].shape
    counts, size = _counts(shares), len(shares[0])
    if len(set(counts)) == 1:
        whole = buffer.view(size, length, batch, counts[0], width)
        blocks: Sequence[Tensor] = whole.unbind()
    else:
        pieces = buffer.split([count * length * batch * width for count in counts])
        blocks = [piece.view(length, batch, -1, width) for piece in pieces]
    firsts = [0] * size
    for part, ranges in zip(parts, shares, strict=True):
        lengths, alone = [len(share) for share in ranges], _is_cut(ranges)
        if alone and len(set(lengths)) == 1 == len(set(counts)):
            heads = part.unflatten(2, (size, lengths[0])).permute(2, 1, 0, 3, 4)
            yield whole.narrow(3, firsts[0], lengths[0]), heads, alone
        else:
            for block, first, share in zip(blocks, firsts, ranges, strict=True):
                yield block.narrow(2, first, len(share)), part[:, :, share.start : share.stop].transpose(0, 1), alone
        firsts = [first + count for first, count in zip(firsts, lengths, strict=True)]


class _ToHeads(Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, shares: Listed, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.shares = group, shares
        return _send_to_heads(parts, shares, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_send_to_tokens(grads, ctx.shares, ctx.group)


class _ToTokens(Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, shares: Listed, x: Tensor) -> Tensor:
        ctx.group, ctx.shares = group, shares
        return _send_to_tokens([x], shares, group)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, _send_to_heads([grad], ctx.shares, ctx.group)[0]
