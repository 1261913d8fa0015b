"""Collectives that autograd can differentiate.

The pair *copy* and *reduce* are the operators f and g of Megatron-LM (arXiv 1909.08053,
section 3): each is the other's backward pass. A group of None is one rank: the input comes
back as it is, and autograd records nothing.

Nothing here writes into a tensor that somebody else may hold: what is reduced in place is
always a fresh copy. Inputs need not be contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A gradient may be expanded or shared with another branch, so it is never ours to overwrite.
    fresh = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(fresh, group=group)
    return fresh


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    x = x.contiguous()
    slices = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(slices, x, group=group)
    return torch.cat(slices, dim=-1)


def _own_slice(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    width = x.shape[-1] // group.size()
    return x.narrow(-1, group.rank() * width, width)


class _CopyToGroup(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.group), None


class _ReduceFromGroup(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherLastDim(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _own_slice(grad, ctx.group), None


class _SplitLastDim(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        # A copy, so that the whole input can be freed.
        return _own_slice(x, group).clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.group), None


def copy_to_group(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return ``x``, which is the same on every rank; its gradient is summed over the group."""
    return x if group is None else _CopyToGroup.apply(x, group)


def reduce_from_group(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of ``x`` over the group; the gradient, the same on every rank, passes as it is."""
    return x if group is None else _ReduceFromGroup.apply(x, group)


def gather_last_dim(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return ``[..., n * t]`` from every rank's ``[..., n]``, in rank order.

    What follows must be the same on every rank: the gradient is cut, not summed.
    """
    return x if group is None else _GatherLastDim.apply(x, group)


def split_last_dim(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return this rank's ``[..., n / t]`` of ``x``, which is ``[..., n]`` and the same on every rank.

    The gradients of the slices are gathered. ``n`` must be a multiple of the group's size.
    """
    if group is None:
        return x
    if x.shape[-1] % group.size():
        raise ValueError(f"split_last_dim: {x.shape[-1]} is not a multiple of the group's {group.size()} ranks")
    return _SplitLastDim.apply(x, group)
