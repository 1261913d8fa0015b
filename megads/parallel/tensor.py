"""Linear layers and embeddings that are split over tensor-parallel ranks.

Megatron-LM's scheme (arXiv 1909.08053): a column-parallel layer followed by a row-parallel
one needs one all-reduce in the forward pass and one in the backward pass. Parameters are
left uninitialised; ``megads.models.build`` fills them.

With ``scattered`` (arXiv 2205.05198, section 4.2.2) the activations outside such a pair are
cut along the sequence, ``[B, S/t, H]`` on each rank. An all-gather before and a
reduce-scatter behind the pair send together what the all-reduce sends; the gathered input
is not kept but gathered once more in the backward pass, in parallel to a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.errors import ConfigError
from megads.parallel.collectives import (
    Group,
    by_position,
    copy_all_to_group,
    reduce_from_group,
    scatter_from_group,
    start_gather,
)
from megads.parallel.opaque import opaque_function
from megads.parallel.overlap import product_of_gathered, rows_by_chunk, start_scattered_product, start_summed_product
from megads.parallel.weight_gradients import is_active, keep_parameters, put_off, waits, weight_gradients


@dataclass(frozen=True)
class Shard:
    """How a parameter is cut over tensor-parallel ranks.

    ``parts`` are the full sizes of the matrices fused along ``dim``, in order: ``(q, k, v)``,
    ``(gate, up)``, or a single one. Rank ``i`` of ``t`` holds the ``i``-th ``t``-th of every
    part, so its slice of a fused ``qkv`` is again ``[q_i | k_i | v_i]``.
    """

    dim: int
    parts: tuple[int, ...]

    def local_parts(self, degree: int) -> tuple[int, ...]:
        """Return the parts' sizes on one of ``degree`` ranks.

        Raises:
            ConfigError: a part cannot be cut into ``degree`` equal slices.
        """
        for part in self.parts:
            if part % degree:
                raise ConfigError(
                    f"a dimension of {part} cannot be split over {degree} tensor-parallel ranks; "
                    f"use a TP that divides {part}"
                )
        return tuple(part // degree for part in self.parts)


def full_shape(shape: torch.Size, shard: Shard | None) -> torch.Size:
    """Return the shape of the full tensor from that of a rank's slice."""
    return torch.Size(sum(shard.parts) if shard and dim == shard.dim else size for dim, size in enumerate(shape))


def take_shard(full: Tensor, shard: Shard | None, rank: int, degree: int) -> Tensor:
    """Return rank ``rank``'s slice of the full tensor; all of it when it is not cut (``shard`` None).

    A view when there is one part, else a copy.
    """
    if shard is None:
        return full
    sizes = shard.local_parts(degree)
    pieces = [
        part.narrow(shard.dim, rank * size, size)
        for part, size in zip(full.split(shard.parts, dim=shard.dim), sizes, strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=shard.dim)


def join_shards(slices: Sequence[Tensor], shard: Shard | None) -> Tensor:
    """Return the full tensor from every rank's slice, in rank order; the inverse of :func:`take_shard`.

    A parameter that is not cut is taken from the first rank.
    """
    if shard is None:
        return slices[0]
    sizes = shard.local_parts(len(slices))
    split = [piece.split(sizes, dim=shard.dim) for piece in slices]
    return torch.cat([piece for part in zip(*split, strict=True) for piece in part], dim=shard.dim)


@dataclass(frozen=True)
class Partition:
    """What a rank holds of a parameter that an engine flattens and cuts over data x seq (ZeRO 3).

    Attributes:
        shape: whole, on this tensor-parallel rank.
        values: ``[n]``, padded with zeros behind the last rank's elements.
        first: number of its first element in the flattened parameter.
    """

    shape: torch.Size
    values: Tensor
    first: int


def is_partitioned(weight: Tensor) -> bool:
    """Return whether an engine has cut a parameter into partitions, and so given it a ``whole_shape``."""
    return hasattr(weight, "whole_shape")


_PLACE: ContextVar[tuple[torch.device, torch.dtype, bool]] = ContextVar("place")


@contextmanager
def placed(device: torch.device, dtype: torch.dtype, *, hollow: bool = False) -> Iterator[None]:
    """Have every :func:`parameter` made in the block lie on ``device`` in ``dtype`` at once: the host holds no copy.

    A ``hollow`` one has its shape, and the memory of a single element: an engine gives it a place.
    """
    token = _PLACE.set((device, dtype, hollow))
    try:
        yield
    finally:
        _PLACE.reset(token)


def parameter(shape: Sequence[int], shard: Shard | None, group: Group = None) -> nn.Parameter:
    """Return this rank's uninitialised slice of a parameter of the full ``shape``, which carries its ``shard``.

    It is float32 on the CPU, except where :func:`placed` says otherwise.
    """
    local = list(shape)
    if shard is not None:
        local[shard.dim] = sum(shard.local_parts(1 if group is None else group.size()))
    device, dtype, hollow = _PLACE.get((torch.device("cpu"), torch.float32, False))
    memory = torch.empty(1, device=device, dtype=dtype).expand(local) if hollow else None
    made = nn.Parameter(torch.empty(local, device=device, dtype=dtype) if memory is None else memory)
    made.shard = shard  # type: ignore[attr-defined]
    return made


@opaque_function(
    "(Tensor x, Tensor weight, Tensor? bias, str group, bool sums_output, int chunks) -> Tensor",
    saved="x weight",
    kept="group sums_output chunks",
)
class _SplitLinear(Function):
    """``F.linear`` with the group's all-reduce on the output or on the input's gradient.

    One function instead of a linear and a collective: what is reduced is known to be
    fresh, so nothing is copied, and the backward all-reduce runs while the weight's
    gradient is computed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sums_output: bool, chunks: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        keep_parameters(ctx, weight, bias)
        ctx.group, ctx.sums_output, ctx.chunks = group, sums_output, chunks
        if group is None or not sums_output:
            return F.linear(x, weight, bias)
        y, work = start_summed_product(x, weight, group, chunks)
        work.wait()
        # After the sum: a bias added on every rank would count once per rank.
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = work = None
        if ctx.needs_input_grad[0]:
            if ctx.sums_output or ctx.group is None:
                grad_x = grad.matmul(weight)
            else:
                grad_x, work = start_summed_product(grad, weight.t(), ctx.group, ctx.chunks)
        gradients = weight_gradients(ctx, grad, x)
        if work is not None:
            work.wait()
        return grad_x, *gradients, None, None, None


@opaque_function(
    "(Tensor x, Tensor weight, Tensor? bias, str group, int chunks) -> Tensor", saved="x weight", kept="group chunks"
)
class _GatherLinear(Function):
    """``F.linear`` of the gathered input. Keeps only this rank's part of the input.

    Inside, tokens lie as ``[S, B]``, so that a rank's part is contiguous; the result is a
    transposed view. What is copied for it when ``B > 1`` is never more than a rank's part.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, chunks: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        keep_parameters(ctx, weight, bias)
        ctx.group, ctx.chunks = group, chunks
        y, _ = product_of_gathered(by_position(x), weight, bias, group, chunks)
        return y.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        whole, grad_x = x, None
        is_put_off, needs_x = waits(ctx), ctx.needs_input_grad[0]
        needs_weight = ctx.needs_input_grad[1] and not is_put_off
        if needs_weight:
            mine = by_position(x)
            whole, gathering = start_gather(mine, ctx.group)
        grad = by_position(grad)
        # Behind the gather: on accelerators a group does one after the other.
        if needs_x:
            scattered, scattering = start_scattered_product(grad, weight.t(), ctx.group, ctx.chunks)
        if needs_weight:
            gathering.wait()
        gradients = put_off(ctx, grad, x, ctx.group) if is_put_off else weight_gradients(ctx, grad, whole)
        if needs_x:
            scattering.wait()
            grad_x = by_position(scattered)
        return grad_x, *gradients, None, None


@opaque_function(
    "(Tensor x, Tensor weight, Tensor? bias, str group, int chunks) -> Tensor", saved="x weight", kept="group chunks"
)
class _ScatterLinear(Function):
    """``F.linear`` with its output summed over the group and scattered along the sequence."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup, chunks: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        keep_parameters(ctx, weight, bias)
        ctx.group, ctx.chunks = group, chunks
        mine, work = start_scattered_product(x.transpose(0, 1), weight, group, chunks)
        work.wait()
        return by_position(mine if bias is None else mine.add_(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        mine, grad_x, rows = by_position(grad), None, x
        if ctx.needs_input_grad[0]:
            chunks = ctx.chunks
            product, whole = product_of_gathered(mine, weight.t(), None, ctx.group, chunks)
            grad_x = product.transpose(0, 1)
        else:
            chunks = 1
            whole, work = start_gather(mine, ctx.group)
            work.wait()
        if ctx.needs_input_grad[1]:
            rows = rows_by_chunk(x.transpose(0, 1), ctx.group.size(), chunks)
        # The bias acts on a rank's part only, but every rank's gradient is at hand: no sum over the group.
        return grad_x, *weight_gradients(ctx, whole, rows), None, None


def whole_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias`` for a weight that is whole on this rank.

    torch's own keeps a view of the weight for the backward pass, and with it the copy that
    ZeRO 3 gathers for a moment: in the end the whole model. Ours keeps the parameter.
    """
    if is_partitioned(weight) or is_active():
        return _SplitLinear.apply(x, weight, bias, None, False, 1)
    return F.linear(x, weight, bias)


def column_parallel_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, *, scattered: bool = False, chunks: int = 1
) -> Tensor:
    """Return ``x @ weight.T + bias`` for a weight whose rows are split; see :class:`ColumnParallelLinear`."""
    if group is None:
        return whole_linear(x, weight, bias)
    if scattered:
        return _GatherLinear.apply(x, weight, bias, group, chunks)
    return _SplitLinear.apply(x, weight, bias, group, False, chunks)


class ColumnParallelLinear(nn.Module):
    """``y = x @ W.T + b`` with the rows of ``W`` (the output features) split over ``group``.

    Rank ``i`` holds rows ``i*F/t .. (i+1)*F/t``::

        x     [..., D]      the same on every rank
        W_i   [F/t, D]
        y_i   [..., F/t]    this rank's slice; concatenating over ranks gives y

    No communication in the forward pass; one all-reduce of ``x.grad`` in the backward pass.
    Follow it with :class:`RowParallelLinear`, which takes ``y_i`` as it is.

    Scattered, ``x`` is this rank's ``[B, S/t, D]`` of ``[B, S, D]``: one all-gather of ``x`` in
    the forward pass; in the backward pass one more and one reduce-scatter of ``x.grad``.

    Args:
        out_features: F, or the sizes of several matrices fused into one; each is split
            by itself, so ``y_i`` is ``[q_i | k_i | v_i]``.
        chunks: in which collectives and products overlap, see ``megads.parallel.overlap``.

    Raises:
        ConfigError: a size in ``out_features`` is not a multiple of the group's size.
    """

    def __init__(
        self,
        in_features: int,
        out_features: Sequence[int],
        group: Group,
        *,
        bias: bool = True,
        scattered: bool = False,
        chunks: int = 1,
    ):
        super().__init__()
        self.group, self.scattered, self.chunks = group, scattered, chunks
        shard, width = Shard(0, tuple(out_features)), sum(out_features)
        self.weight = parameter((width, in_features), shard, group)
        self.bias = parameter((width,), shard, group) if bias else None

    def forward(self, x: Tensor, use: Callable[..., Tensor] | None = None) -> Tensor:
        """Return this rank's slice of the output; with ``use`` what that makes of input, weight and bias."""
        if use is not None:
            return use(x, self.weight, self.bias)
        return column_parallel_linear(
            x, self.weight, self.bias, self.group, scattered=self.scattered, chunks=self.chunks
        )


class RowParallelLinear(nn.Module):
    """``y = x @ W.T + b`` with the columns of ``W`` (the input features) split over ``group``.

    Rank ``i`` holds columns ``i*D/t .. (i+1)*D/t``::

        x_i   [..., D/t]    this rank's slice, as ColumnParallelLinear leaves it
        W_i   [F, D/t]
        y     [..., F]      the same on every rank

    One all-reduce of ``y`` in the forward pass, no communication in the backward pass. The
    bias is whole on every rank and added once, after the sum.

    Scattered, ``x_i`` is ``[B, S, D/t]`` and ``y`` this rank's ``[B, S/t, F]``: one reduce-scatter
    of ``y`` in the forward pass, one all-gather of ``y.grad`` in the backward pass. The bias's
    gradient comes out whole on every rank.

    Args:
        chunks: in which collectives and products overlap, see ``megads.parallel.overlap``.

    Raises:
        ConfigError: ``in_features`` is not a multiple of the group's size.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        group: Group,
        *,
        bias: bool = True,
        scattered: bool = False,
        chunks: int = 1,
    ):
        super().__init__()
        self.group, self.scattered, self.chunks = group, scattered, chunks
        self.weight = parameter((width, in_features), Shard(1, (in_features,)), group)
        self.bias = parameter((width,), None) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the whole output, or this rank's part of the sequence."""
        if self.group is None:
            return whole_linear(x, self.weight, self.bias)
        if self.scattered:
            return _ScatterLinear.apply(x, self.weight, self.bias, self.group, self.chunks)
        return _SplitLinear.apply(x, self.weight, self.bias, self.group, True, self.chunks)


class WholeLinear(nn.Module):
    """``y = x @ W.T + b``, whole on every rank.

    ``scattered_over``: ranks that have a part of the tokens each, ``x`` being ``[B, S/t, D]``, and sum the
    gradients of ``W`` and ``b``.
    """

    def __init__(self, in_features: int, width: int, scattered_over: Group = None):
        super().__init__()
        self.group = scattered_over
        self.weight, self.bias = parameter((width, in_features), None), parameter((width,), None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of this rank's tokens."""
        if self.group is None:
            return whole_linear(x, self.weight, self.bias)
        weight, bias = copy_all_to_group((self.weight, self.bias), self.group)
        return F.linear(x, weight, bias)


class VocabParallelEmbedding(nn.Module):
    """A table whose rows (tokens) are split over ``group``.

    Rank ``i`` holds rows ``i*V/t .. (i+1)*V/t`` and gives zeros for all other tokens; one
    all-reduce in the forward pass makes the whole::

        tokens  [...]       int64, the same on every rank
        W_i     [V/t, D]
        y       [..., D]    the same on every rank

    Scattered, ``tokens`` is ``[B, S]`` and ``y`` this rank's ``[B, S/t, D]``: one reduce-scatter in
    the forward pass, one all-gather in the backward pass.

    Raises:
        ConfigError: ``num_rows`` is not a multiple of the group's size.
    """

    def __init__(self, num_rows: int, width: int, group: Group, *, scattered: bool = False):
        super().__init__()
        self.group, self.scattered = group, scattered
        self.weight = parameter((num_rows, width), Shard(0, (num_rows,)), group)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows of ``tokens``."""
        if self.group is None:
            return F.embedding(tokens, self.weight)
        # Looked up by position, a rank's part of the sequence is contiguous.
        tokens = tokens.t() if self.scattered else tokens
        rows = self.weight.shape[0]
        local = tokens - self.group.rank() * rows
        elsewhere = (local < 0) | (local >= rows)
        y = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        y = y.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return scatter_from_group(y.transpose(0, 1), self.group) if self.scattered else reduce_from_group(y, self.group)
