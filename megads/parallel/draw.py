"""Labels drawn from the model's own distribution, over a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

AT_ONCE = 1 << 22
"""Logits that are looked at together, in float64."""


@torch.no_grad()
def draw_labels(logits: Tensor, numbers: Tensor, group: dist.ProcessGroup | None, vocab_size: int) -> Tensor:
    """Return for every token a label drawn from ``softmax(logits)``: the inverse of its distribution at ``numbers``.

    Args:
        logits: ``[B, S, V/t]``, this rank's columns; those from ``vocab_size`` on, over all ranks, are padding.
        numbers: ``[B, S]`` in [0, 1), the same on every rank of ``group``; where one is negative nothing is drawn.
        group: tensor-parallel group; None: one rank.
        vocab_size: real columns over all ranks.

    Returns:
        ``[B, S]`` int64, the same on every rank; -1 where nothing is drawn.
    """
    rank = 0 if group is None else group.rank()
    first = rank * logits.shape[-1]
    real = min(max(vocab_size - first, 0), logits.shape[-1])
    flat, wanted = logits.flatten(0, -2)[:, :real], numbers.flatten()
    step = max(1, AT_ONCE // logits.shape[-1])
    found = [
        _draw(some, number, group, first) for some, number in zip(flat.split(step), wanted.split(step), strict=True)
    ]
    labels = torch.cat(found).clamp_(max=vocab_size - 1)
    return labels.masked_fill(wanted < 0, -1).view(numbers.shape)


def _draw(logits: Tensor, numbers: Tensor, group: dist.ProcessGroup | None, first: int) -> Tensor:
    columns = logits.double()
    has_any = columns.shape[1] > 0
    peak = columns.amax(dim=1) if has_any else columns.new_full((len(columns),), -torch.inf)
    if group is not None:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    sums = (columns - peak.unsqueeze(1)).exp_().cumsum(dim=1)
    own = sums[:, -1] if has_any else torch.zeros_like(peak)
    shares = [own]
    if group is not None:
        shares = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(shares, own.contiguous(), group=group)
    rank = 0 if group is None else group.rank()
    ends = torch.stack(shares).cumsum(dim=0)
    target = numbers.double().clamp(min=0) * ends[-1]
    before = ends[rank] - own
    # How many columns of this rank lie wholly before the target; over all ranks that is the label.
    count = (sums <= (target - before).unsqueeze(1)).sum(dim=1)
    if group is not None:
        dist.all_reduce(count, group=group)
    return count
