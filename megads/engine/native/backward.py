"""A backward pass from a given gradient.

``torch.autograd.backward(x, gradient)`` imports sympy to compare two shapes: 480 files and a second on every rank.
From a number it imports nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class _Number(Function):
    """A number whose gradient with regard to ``x`` is ``gradient``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        assert gradient.shape == x.shape
        ctx.save_for_backward(gradient)
        return x.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def run_backward(x: Tensor, gradient: Tensor) -> None:
    """Do the backward pass of ``x``, whose gradient is ``gradient``, of its shape. The memory of ``x`` is not read."""
    _Number.apply(x, gradient).backward()
