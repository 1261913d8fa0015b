"""Cross entropy over a vocabulary that is split over tensor-parallel ranks, and labels drawn from the model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.parallel.collectives import Group


def whole_cross_entropy(logits: Tensor, labels: Tensor, real: int) -> Tensor:
    """Return the cross entropy ``[...]`` of the first ``real`` columns of ``logits``, ``[..., V]``."""
    flat = logits[..., :real].flatten(0, -2)
    wide = flat if flat.dtype == torch.float64 else flat.float()
    return F.cross_entropy(wide, labels.flatten(), reduction="none").view(labels.shape)


CrossEntropy = Callable[[Tensor, Tensor, int], Tensor]
"""What computes as :func:`whole_cross_entropy` does."""


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, group: Group, vocab_size: int, cross_entropy: CrossEntropy = whole_cross_entropy
) -> Tensor:
    """Return every token's ``-log softmax(logits)[label]``.

    No rank ever holds more than its own columns: ranks exchange one maximum, one sum and
    one logit per token. Columns from ``vocab_size`` on are padding; they take no part and
    get a zero gradient. What is kept for the backward pass is the logits themselves.

    Args:
        logits: ``[..., V/t]``, this rank's columns in any floating type.
        labels: ``[...]`` int64, each in ``0 .. vocab_size - 1``, the same on every rank.
        vocab_size: number of real columns over all ranks.
        cross_entropy: of whole columns.

    Returns:
        ``[...]`` float32 (float64 for float64 logits), the same on every rank.

    Raises:
        IndexError: a label is out of range (checked on the CPU only, where it costs nothing).
    """
    if labels.device.type == "cpu" and labels.numel():
        low, high = (int(edge) for edge in labels.aminmax())
        if low < 0 or high >= vocab_size:
            raise IndexError(f"labels lie in {low} .. {high}; the vocabulary has the tokens 0 .. {vocab_size - 1}")
    first, real = own_columns(logits, group, vocab_size)
    if group is None:
        return cross_entropy(logits, labels, real)
    return _SplitCrossEntropy.apply(logits, labels, group, first, real)


def own_columns(logits: Tensor, group: Group, vocab_size: int) -> tuple[int, int]:
    """Return the number of this rank's first column, and how many of its columns are no padding."""
    first = (0 if group is None else group.rank()) * logits.shape[-1]
    return first, min(max(vocab_size - first, 0), logits.shape[-1])


@torch.no_grad()
def most_likely(logits: Tensor, group: Group, vocab_size: int) -> Tensor:
    """Return every token's most likely successor, of equal ones the first; ``[...]`` int64, the same on every rank.

    Arguments are those of :func:`vocab_parallel_cross_entropy`.
    """
    first, real = own_columns(logits, group, vocab_size)
    if real:
        peak, place = logits[..., :real].max(dim=-1)
    else:  # a rank with nothing but padding
        peak = torch.full(logits.shape[:-1], -torch.inf, dtype=logits.dtype, device=logits.device)
        place = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    if group is None:
        return place
    peaks, places = (each.new_empty(group.size() * each.numel()) for each in (peak, place))
    dist.all_gather_into_tensor(peaks, peak.flatten(), group=group)
    dist.all_gather_into_tensor(places, (place + first).flatten(), group=group)
    best = peaks.view(group.size(), -1).argmax(dim=0, keepdim=True)
    return places.view(group.size(), -1).gather(0, best).view(place.shape)


class _SplitCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: dist.ProcessGroup, first: int, real: int) -> Tensor:
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        columns = logits[..., :real]
        if real:
            peak = columns.amax(dim=-1).to(wide)
        else:  # a rank with nothing but padding
            peak = torch.full(labels.shape, -torch.inf, dtype=wide, device=logits.device)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        shifted = columns.to(wide) - peak.unsqueeze(-1)
        local = labels - first
        elsewhere = (local < 0) | (local >= real)
        local = local.masked_fill(elsewhere, 0)
        sums = torch.zeros((2, *labels.shape), dtype=wide, device=logits.device)
        if real:
            picked = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1)
            sums[0] = picked.masked_fill(elsewhere, 0.0)
            sums[1] = shifted.exp_().sum(dim=-1)
        dist.all_reduce(sums, group=group)
        # Peak and sum apart: their joint logarithm would lose digits when the peak is large.
        ctx.save_for_backward(logits, local, elsewhere, peak, sums[1])
        ctx.real = real
        return sums[1].log() - sums[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, local, elsewhere, peak, total = ctx.saved_tensors
        scale = grad.unsqueeze(-1)
        shifted = logits[..., : ctx.real].to(peak.dtype) - peak.unsqueeze(-1)
        probability = shifted.exp_().mul_(scale / total.unsqueeze(-1))
        if ctx.real:
            probability.scatter_add_(-1, local.unsqueeze(-1), scale.masked_fill(elsewhere.unsqueeze(-1), 0.0).neg())
        if ctx.real == logits.shape[-1]:
            return probability.to(logits.dtype), None, None, None, None
        whole = torch.zeros_like(logits)
        whole[..., : ctx.real] = probability
        return whole, None, None, None, None


AT_ONCE = 1 << 22
"""Logits that are looked at together, in float64."""


@torch.no_grad()
def draw_labels(logits: Tensor, numbers: Tensor, group: Group, vocab_size: int) -> Tensor:
    """Return for every token a label drawn from ``softmax(logits)``: the inverse of its distribution at ``numbers``.

    Args:
        logits: ``[B, S, V/t]``, this rank's columns; those from ``vocab_size`` on, over all ranks, are padding.
        numbers: ``[B, S]`` in [0, 1), the same on every rank of ``group``; where one is negative nothing is drawn.
        vocab_size: real columns over all ranks.

    Returns:
        ``[B, S]`` int64, the same on every rank; -1 where nothing is drawn.
    """
    first, real = own_columns(logits, group, vocab_size)
    flat, wanted = logits.flatten(0, -2)[:, :real], numbers.flatten()
    step = max(1, AT_ONCE // logits.shape[-1])
    found = [
        _draw(some, number, group, first) for some, number in zip(flat.split(step), wanted.split(step), strict=True)
    ]
    labels = torch.cat(found).clamp_(max=vocab_size - 1)
    return labels.masked_fill(wanted < 0, -1).view(numbers.shape)


def _draw(logits: Tensor, numbers: Tensor, group: Group, first: int) -> Tensor:
    columns = logits.double()
    has_any = columns.shape[1] > 0
    peak = columns.amax(dim=1) if has_any else columns.new_full((len(columns),), -torch.inf)
    if group is not None:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    sums = (columns - peak.unsqueeze(1)).exp_().cumsum(dim=1)
    own = sums[:, -1] if has_any else torch.zeros_like(peak)
    rank, shares = 0, own
    if group is not None:
        rank, shares = group.rank(), own.new_empty(group.size() * len(own))
        dist.all_gather_into_tensor(shares, own.contiguous(), group=group)
    ends = shares.view(-1, len(own)).cumsum(dim=0)
    target = numbers.double().clamp(min=0) * ends[-1]
    before = ends[rank] - own
    # How many columns of this rank lie wholly before the target; over all ranks that is the label.
    count = (sums <= (target - before).unsqueeze(1)).sum(dim=1)
    if group is not None:
        dist.all_reduce(count, group=group)
    return count
