"""Attention and norms as accelerators compute them: one kernel that keeps what it needs.

A CPU's kernels keep more. Attention keeps its inputs, the result, and one float32 of a query (FlashAttention, arXiv
2205.14135); a norm keeps its input and float32 statistics of every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function


class Attention(Function):
    """Stands for a fused kernel of attention; it computes nothing."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        """Return the result, and keep what the backward pass of such a kernel reads."""
        out, statistics = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of queries, keys and values."""
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])


class Norm(Function):
    """Stands for a fused norm; it computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        """Return the result, and keep input and statistics."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        ctx.has_bias = bias is not None
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of input, weight and bias."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight) if ctx.has_bias else None


@contextmanager
def fused() -> Iterator[None]:
    """Have attention and norms in the block be those of accelerators."""
    names = ("scaled_dot_product_attention", "rms_norm", "layer_norm")
    before = {name: getattr(F, name) for name in names}
    given: dict[str, Any] = {
        "scaled_dot_product_attention": lambda q, k, v, *rest, **named: Attention.apply(q, k, v),
        "rms_norm": lambda x, shape, weight, epsilon: Norm.apply(x, weight, None),
        "layer_norm": lambda x, shape, weight, bias, epsilon: Norm.apply(x, weight, bias),
    }
    try:
        for name, stand_in in given.items():
            setattr(F, name, stand_in)
        yield
    finally:
        for name, original in before.items():
            setattr(F, name, original)
