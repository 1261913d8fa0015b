"""Gradients of linear layers' weights, at once or later: the W of zero-bubble pipelines (arXiv 2401.10241).

A backward pass has two parts that cost about the same. The gradient of the input (B) is what the stage before
waits for; the gradient of the weight (W) is needed at the end of the step only. In a block of
:meth:`LaterGradients.collected` the backward pass does B, and keeps of every linear layer the input and the gradient
of the output; :meth:`LaterGradients.compute` does W.

Without an active :class:`LaterGradients` everything is computed at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megads.parallel.collectives import Group, by_position, start_gather

Parameters = tuple[Tensor, Tensor | None]


class _Waiting(NamedTuple):
    parameters: Parameters  # weight, [F, D], and bias, [F]
    grad: Tensor  # [..., F], of the output
    x: Tensor  # [..., D]; with a group [B, S/t, D], this rank's part
    group: Group  # which gathers the input; None: it is whole


class LaterGradients:
    """Weights' gradients that wait, by the micro-batch that they are of.

    They are computed by a backward pass of one node, so that they reach a parameter, and the hooks
    that wait for them, as those computed at once do.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, list[_Waiting]] = defaultdict(list)
        self._open: list[_Waiting] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Have the forward passes in the block keep what is needed to compute a weight's gradient later."""
        global _ACTIVE
        assert _ACTIVE is None, "weights' gradients are already put off"
        _ACTIVE = self
        try:
            yield
        finally:
            _ACTIVE = None

    @contextmanager
    def collected(self, key: Hashable) -> Iterator[None]:
        """Put off the weights' gradients of the backward pass in the block, under ``key``."""
        self._open = self._waiting[key]
        try:
            yield
        finally:
            self._open = None

    @property
    def waits_now(self) -> bool:
        """Whether a block of :meth:`collected` is open."""
        return self._open is not None

    def add(self, waiting: _Waiting) -> None:
        """Put off one layer's gradients."""
        assert self._open is not None
        self._open.append(waiting)

    def compute(self, key: Hashable) -> None:
        """Compute what was put off under ``key``, in the order of the backward pass; memory is freed on the way."""
        waiting = self._waiting.pop(key, [])
        waiting.reverse()
        while waiting:
            each = waiting.pop()
            _Later.apply(*each.parameters, each.grad, each.x, each.group).backward()

    def forget(self) -> None:
        """Drop everything that waits: the step ended early."""
        self._waiting.clear()


@contextmanager
def at_once() -> Iterator[None]:
    """Put nothing off in the block: a backward pass inside another one, which needs what it finds."""
    active = _ACTIVE
    if active is None:
        yield
        return
    opened, active._open = active._open, None
    try:
        yield
    finally:
        active._open = opened


# Not a ContextVar: on an accelerator autograd runs backward passes in a thread of its own.
_ACTIVE: LaterGradients | None = None


def is_active() -> bool:
    """Return whether the backward passes of what runs now may be asked to put weights' gradients off."""
    return _ACTIVE is not None


def keep_parameters(ctx: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Have a Function's forward keep what a gradient computed later goes to. Saved tensors may be copies of it."""
    may_wait = _ACTIVE is not None and weight.is_leaf and (bias is None or bias.is_leaf)
    ctx.parameters = (weight, bias) if may_wait else None


def waits(ctx: Any) -> bool:
    """Return whether a Function's backward is to put the weight's gradient off."""
    return _ACTIVE is not None and _ACTIVE.waits_now and ctx.parameters is not None and any(ctx.needs_input_grad[1:3])


def put_off(ctx: Any, grad: Tensor, x: Tensor, group: Group = None) -> tuple[None, None]:
    """Compute the gradients of weight and bias later. ``group``: gathers ``x``, ``[B, S/t, D]``, along the sequence."""
    assert _ACTIVE is not None
    _ACTIVE.add(_Waiting(ctx.parameters, grad.detach(), x.detach(), group))
    return None, None


def weight_gradients(ctx: Any, grad: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight and bias, as far as they are needed, of ``x`` with the gradient of its output.

    The Function's inputs are input, weight and bias, in this order. None, if they are computed later.
    """
    return put_off(ctx, grad, x) if waits(ctx) else _products(ctx.needs_input_grad[1:3], grad, x)


def _products(needs: tuple[bool, ...], grad: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    grad = grad.flatten(0, -2)
    return grad.t().mm(x.flatten(0, -2)) if needs[0] else None, grad.sum(dim=0) if needs[1] else None


class _Later(Function):
    """Nothing, whose backward pass finds gradients that were put off."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, grad: Tensor, x: Tensor, group: Group) -> Tensor:
        ctx.save_for_backward(grad, x)
        ctx.group = group
        return weight.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        grad, x = ctx.saved_tensors
        if ctx.group is not None:
            mine = by_position(x)
            x, work = start_gather(mine, ctx.group)
            work.wait()
        return *_products(ctx.needs_input_grad[:2], grad, x), None, None, None
