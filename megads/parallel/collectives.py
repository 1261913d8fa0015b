"""Collectives that autograd can differentiate.

The pair *copy* and *reduce* are the operators f and g of Megatron-LM (arXiv 1909.08053,
section 3): each is the other's backward pass. A group of None is one rank: the input comes
back as it is, and autograd records nothing.

Nothing here writes into a tensor that somebody else may hold: what is reduced in place is
always a fresh copy. Inputs need not be contiguous, unless a function says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.parallel.opaque import opaque

Group = dist.ProcessGroup | None
"""None is a group of one rank."""


def start_gather(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work]:
    """Return ``[n * t, ...]``, every rank's ``x`` in rank order, once the work has been waited for.

    ``x`` is ``[n, ...]``, contiguous, and must live until the work is done. Not seen by autograd.
    """
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    return out, dist.all_gather_into_tensor(out, x, group=group, async_op=True)


def start_scatter(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, dist.Work]:
    """Return this rank's ``[n / t, ...]`` of the sum of ``x`` over the group, once the work has been waited for.

    ``x`` is ``[n, ...]``, contiguous, and must live until the work is done; the group's ``t`` divides ``n``. Not
    seen by autograd.
    """
    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    return out, dist.reduce_scatter_tensor(out, x, group=group, async_op=True)


def by_position(x: Tensor) -> Tensor:
    """Return ``[B, S, ...]`` as a contiguous ``[S, B, ...]``: what is gathered or scattered along ``S``.

    No copy when ``B`` is 1, or when ``x`` is a transposed ``[S, B, ...]``.
    """
    return x.transpose(0, 1).contiguous()


@opaque("(Tensor x, str group) -> Tensor")
def _summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    # A gradient may be expanded or shared with another branch, so it is never ours to overwrite.
    fresh = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(fresh, group=group)
    return fresh


@opaque("(Tensor[] grads, str group) -> Tensor")
def _summed_together(grads: Sequence[Tensor], group: dist.ProcessGroup) -> Tensor:
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    return flat


@opaque("(Tensor x, str group) -> Tensor")
def _scattered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's ``[B, S / t, ...]`` of the sum of ``x``."""
    whole = by_position(x)
    mine, work = start_scatter(whole, group)
    work.wait()
    return by_position(mine)


@opaque("(Tensor x, str group) -> Tensor")
def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return ``[n * t, ...]``, every rank's contiguous ``x`` in rank order."""
    whole, work = start_gather(x, group)
    work.wait()
    return whole


class _CopyToGroup(Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if len(grads) == 1:
            return None, _summed(grads[0], ctx.group)
        flat = _summed_together(grads, ctx.group)
        pieces = flat.split([grad.numel() for grad in grads])
        return None, *(piece.view(grad.shape) for piece, grad in zip(pieces, grads, strict=True))


class _ReduceFromGroup(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _ScatterFromGroup(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scattered(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(by_position(grad), ctx.group).transpose(0, 1), None


class _GatherFromGroup(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(by_position(x), group).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _scattered(grad, ctx.group), None


class _SplitRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        rows = x.shape[0] // group.size()
        return x.narrow(0, group.rank() * rows, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad.contiguous(), ctx.group), None


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Return ``x``, which is the same on every rank; its gradient is summed over the group."""
    return x if group is None else _CopyToGroup.apply(group, x)[0]


def copy_all_to_group(xs: Sequence[Tensor], group: Group) -> tuple[Tensor, ...]:
    """Return ``xs``, of one type, as :func:`copy_to_group` does; one all-reduce sums all their gradients."""
    return tuple(xs) if group is None else _CopyToGroup.apply(group, *xs)


def partial_over(weight: Tensor, group: Group) -> None:
    """Mark that a rank of ``group`` finds a part of the weight's gradient, of its own tokens or heads."""
    weight.partial_over = group  # type: ignore[attr-defined]


def with_summed_gradient(*weights: Tensor) -> tuple[Tensor, ...]:
    """Return weights that :func:`partial_over` has marked; one all-reduce sums their gradients in the backward pass.

    None does where an engine sums them for all layers (``sums_later``).
    """
    group: Group = weights[0].partial_over  # type: ignore[attr-defined]
    return weights if getattr(weights[0], "sums_later", False) else copy_all_to_group(weights, group)


def reduce_from_group(x: Tensor, group: Group) -> Tensor:
    """Return the sum of ``x`` over the group; the gradient, the same on every rank, passes as it is."""
    return x if group is None else _ReduceFromGroup.apply(x, group)


def scatter_from_group(x: Tensor, group: Group) -> Tensor:
    """Return this rank's ``[B, S / t, ...]`` of the sum of ``x`` over the group; gradients are gathered.

    S must be a multiple of the group's size ``t``. ``x`` is not copied when it is a transposed ``[S, B, ...]`` or B
    is 1.
    """
    if group is None:
        return x
    _check_cut("scatter_from_group", x.shape[1], group)
    return _ScatterFromGroup.apply(x, group)


def gather_from_group(x: Tensor, group: Group) -> Tensor:
    """Return ``[B, S, ...]``, every rank's ``x``, ``[B, S / t, ...]``, in rank order; gradients are summed and cut."""
    return x if group is None else _GatherFromGroup.apply(x, group)


def split_rows(x: Tensor, group: Group) -> Tensor:
    """Return this rank's ``[n / t, ...]`` of ``x``, which is ``[n, ...]`` and the same on every rank.

    The gradients of the slices are gathered. ``n`` must be a multiple of the group's size.
    """
    if group is None:
        return x
    _check_cut("split_rows", x.shape[0], group)
    return _SplitRows.apply(x, group)


def _check_cut(name: str, size: int, group: dist.ProcessGroup) -> None:
    if size % group.size():
        raise ValueError(f"{name}: {size} is not a multiple of the group's {group.size()} ranks")
