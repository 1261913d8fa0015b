"""What the sequence rank before this one hands on: a part of a row that both need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist


def from_previous(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the ``x`` of the rank before this one, of the same shape on every rank; zeros on the first.

    One all-to-all in which every rank sends to its successor alone; the gradient comes back in another one.
    """
    return _FromPrevious.apply(x, group)


def _sent(x: Tensor, group: dist.ProcessGroup, step: int) -> Tensor:
    """Return what the rank ``step`` before this one has sent; zeros where there is none."""
    rank, size = group.rank(), group.size()
    to, source = rank + step, rank - step
    count = x.numel()
    sends = [count if each == to else 0 for each in range(size)]
    receives = [count if each == source else 0 for each in range(size)]
    mine = x.contiguous().view(-1)[: sum(sends)]
    received = x.new_empty(sum(receives))
    dist.all_to_all_single(received, mine, receives, sends, group=group)
    return received.view(x.shape) if 0 <= source < size else torch.zeros_like(x)


class _FromPrevious(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _sent(x, group, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sent(grad, ctx.group, -1), None
