"""Cross entropy over a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, group: dist.ProcessGroup | None, vocab_size: int
) -> Tensor:
    """Return every token's ``-log softmax(logits)[label]``.

    No rank ever holds more than its own columns: ranks exchange one maximum, one sum and
    one logit per token. Columns from ``vocab_size`` on are padding; they take no part and
    get a zero gradient. What is kept for the backward pass is the logits themselves.

    Args:
        logits: ``[..., V/t]``, this rank's columns in any floating type.
        labels: ``[...]`` int64, each in ``0 .. vocab_size - 1``, the same on every rank.
        group: tensor-parallel group; None: one rank.
        vocab_size: number of real columns over all ranks.

    Returns:
        ``[...]`` float32 (float64 for float64 logits), the same on every rank.

    Raises:
        IndexError: a label is out of range (checked on the CPU only, where it costs nothing).
    """
    if labels.device.type == "cpu" and labels.numel():
        low, high = (int(edge) for edge in labels.aminmax())
        if low < 0 or high >= vocab_size:
            raise IndexError(f"labels lie in {low} .. {high}; the vocabulary has the tokens 0 .. {vocab_size - 1}")
    rank = 0 if group is None else group.rank()
    first = rank * logits.shape[-1]
    real = min(max(vocab_size - first, 0), logits.shape[-1])
    if group is None:
        flat = logits[..., :real].flatten(0, -2)
        wide = flat if flat.dtype == torch.float64 else flat.float()
        return F.cross_entropy(wide, labels.flatten(), reduction="none").view(labels.shape)
    return _SplitCrossEntropy.apply(logits, labels, group, first, real)


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
