"""Output layer and cross entropy as one, a few tokens at a time: logits of all tokens never stand together.

In the forward pass the gradients of a chunk's states and of the output layer's weight are computed as soon as its
logits are there, so nothing is computed twice, and what is kept are gradients: ``[B, s, H]``, and one float32 of every
weight. The backward pass multiplies them by the gradient of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.parallel.collectives import Group, by_position, start_gather, start_scatter
from megads.parallel.loss import draw_labels, most_likely, own_columns


@dataclass(frozen=True)
class LinearLoss:
    """Cross entropy of the logits ``x @ weight.T + bias``, computed in chunks of tokens.

    ``x`` is ``[B, S, H]``, the same on every rank of ``group``; scattered, this rank's ``[B, S/t, H]`` of it.
    ``weight`` is ``[V/t, H]`` and ``bias`` ``[V/t]`` or None: this rank's columns of the logits. ``labels`` are
    ``[B, S]``, the same on every rank: int64, negative where none counts, or numbers in [0, 1) from which the model's
    own labels are drawn (:func:`megads.parallel.loss.draw_labels`).

    Args:
        vocab_size: real columns over all ranks; those behind are padding.
        chunk: tokens whose logits stand at a time, over all ranks of ``group``.
    """

    group: Group
    vocab_size: int
    chunk: int
    is_scattered: bool = False

    def total(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Return the sum of the counted tokens' cross entropies, [] float32 (float64 of float64 states)."""
        self._check(labels)
        if torch.is_grad_enabled():
            return _Total.apply(x, weight, bias, labels.contiguous(), self)
        return self._forward(x, weight, bias, labels.contiguous(), None)

    @torch.no_grad()
    def of_tokens(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Return every token's cross entropy, ``[B, S]``, 0 where the label is negative; without gradients."""
        self._check(labels)
        labels = labels.contiguous()
        found = torch.zeros(labels.shape, dtype=_wide(x.dtype), device=x.device)
        for place, states in self._chunks(x):
            losses, _ = self._losses(F.linear(states, weight, bias), place.take(labels), None)
            place.put(found, losses)
        return found

    @torch.no_grad()
    def most_likely(self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
        """Return every token's most likely successor, ``[B, S]`` int64; of ``labels`` only the shape matters."""
        found = torch.empty(labels.shape, dtype=torch.int64, device=x.device)
        for place, states in self._chunks(x):
            place.put(found, most_likely(F.linear(states, weight, bias), self.group, self.vocab_size))
        return found

    def _check(self, labels: Tensor) -> None:
        if labels.device.type == "cpu" and labels.numel() and not labels.is_floating_point():
            largest = int(labels.max())
            if largest >= self.vocab_size:
                raise IndexError(f"a label is {largest}; the vocabulary has the tokens 0 .. {self.vocab_size - 1}")

    @property
    def _scattered_over(self) -> Group:
        return self.group if self.is_scattered else None

    def _chunks(self, x: Tensor) -> Iterator[tuple[_Place, Tensor]]:
        """Yield the states ``[n, H]`` of each chunk, whole, and where they are; the next ones are on their way."""
        group = self._scattered_over
        x = x if group is not None else x.reshape(1, -1, x.shape[-1])
        parts, length = 1 if group is None else group.size(), x.shape[1]
        step = max(1, self.chunk // (x.shape[0] * parts))
        places = [
            _Place(x.shape[0], parts, length, first, min(first + step, length)) for first in range(0, length, step)
        ]
        if group is None:
            for place in places:
                yield place, x[0, place.first : place.last]
            return
        coming = _gathered(x, places[0], group)
        for place, following in zip(places, [*places[1:], None], strict=True):
            _, states, work = coming
            work.wait()
            if following is not None:
                coming = _gathered(x, following, group)
            yield place, states.flatten(0, 1)

    def _losses(self, logits: Tensor, labels: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the cross entropy of each row of ``logits``, 0 where it does not count, and which rows count.

        Args:
            gradient: where that of the sum goes, ``logits`` itself or like it; rows that do not count are as others.
        """
        group, vocab = self.group, self.vocab_size
        if labels.is_floating_point():
            labels = draw_labels(logits.unsqueeze(0), labels.unsqueeze(0), group, vocab)[0]
        first, real = own_columns(logits, group, vocab)
        counts, local = labels >= 0, labels - first
        elsewhere = (local < 0) | (local >= real)
        local = local.masked_fill(elsewhere, 0).unsqueeze(1)
        logits[:, real:] = -torch.inf
        if group is None:
            shares = F.log_softmax(logits, dim=1, dtype=_wide(logits.dtype))
            losses = -shares.gather(1, local).squeeze(1)
        else:
            shares, losses = _split_losses(logits, local, elsewhere, group)
        if gradient is not None:
            if group is None:
                shares.exp_()
            shares.scatter_add_(1, local, elsewhere.unsqueeze(1).to(shares.dtype).sub_(1.0))
            gradient.copy_(shares)
        return losses.masked_fill_(~counts, 0.0), counts

    def _forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, found: _Gradients | None
    ) -> Tensor:
        total = torch.zeros((), dtype=_wide(x.dtype), device=x.device)
        for place, states in self._chunks(x):
            logits = F.linear(states, weight, bias)
            losses, counts = self._losses(logits, place.take(labels), logits if found else None)
            total += losses.sum()
            if found:
                found.add(place, states, logits, counts)
        return total


@dataclass(frozen=True)
class _Place:
    """Positions ``first .. last`` of every part of ``length`` tokens that a row of a micro-batch is cut into."""

    rows: int
    parts: int
    length: int
    first: int
    last: int

    def _of(self, x: Tensor) -> Tensor:
        return x.view(self.rows, self.parts, self.length)[:, :, self.first : self.last].permute(1, 2, 0)

    def take(self, x: Tensor) -> Tensor:
        """Return what ``x``, a contiguous ``[B, S]``, has here, in the order of the chunk's states."""
        return self._of(x).flatten()

    def put(self, x: Tensor, values: Tensor) -> None:
        """Write what :meth:`take` would return."""
        here = self._of(x)
        here.copy_(values.view(here.shape))


def _gathered(x: Tensor, place: _Place, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, dist.Work]:
    mine = by_position(x[:, place.first : place.last])
    return mine, *start_gather(mine, group)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _split_losses(logits: Tensor, local: Tensor, elsewhere: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return this rank's columns of the probabilities, and the cross entropy of each row."""
    shares = logits.to(_wide(logits.dtype))
    peak = shares.amax(dim=1)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    shares = shares.sub_(peak.unsqueeze(1))
    sums = shares.new_empty(2, len(shares))
    sums[0] = shares.gather(1, local).squeeze(1).masked_fill_(elsewhere, 0.0)
    sums[1] = shares.exp_().sum(dim=1)
    dist.all_reduce(sums, group=group)
    return shares.mul_(sums[1].reciprocal().unsqueeze(1)), sums[1].log() - sums[0]


class _Gradients:
    """Gradients of the summed cross entropy, as far as they are needed, found chunk by chunk."""

    def __init__(self, loss: LinearLoss, x: Tensor, weight: Tensor, needs: tuple[bool, ...]):
        self.loss, self.weight = loss, weight
        wide = _wide(weight.dtype)
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
        self.of_weight = torch.zeros_like(weight, dtype=wide) if needs[1] else None
        self.of_bias = weight.new_zeros(len(weight), dtype=wide) if needs[2] else None
        self.works: list[tuple[dist.Work, _Place, Tensor]] = []

    def add(self, place: _Place, states: Tensor, grad: Tensor, counts: Tensor) -> None:
        """Add those of a chunk; ``grad`` is that of its logits, as if all counted."""
        counted = counts.to(states.dtype).unsqueeze(1)
        if self.x is not None:
            self._add_to_states(place, grad, counted)
        if self.of_weight is not None:
            if self.of_weight.dtype == grad.dtype:
                self.of_weight.addmm_(grad.t(), states * counted)
            else:
                self.of_weight += grad.t().mm(states * counted)
        if self.of_bias is not None:
            self.of_bias += counted.t().mm(grad).squeeze(0)

    def _add_to_states(self, place: _Place, grad: Tensor, counted: Tensor) -> None:
        assert self.x is not None
        group = self.loss.group
        found = grad.mm(self.weight).mul_(counted)
        if self.loss.is_scattered and group is not None:
            whole = found.view(-1, place.rows, found.shape[1])
            mine, work = start_scatter(whole, group)
            self._wait()  # for the chunk before: two are on their way at most
            self.works.append((work, place, mine))
            self.sent = whole
            return
        here = self.x.view(-1, found.shape[1])[place.first : place.last]
        here.copy_(found)
        if group is not None:
            self._wait()
            self.works.append((dist.all_reduce(here, group=group, async_op=True), place, here))

    def _wait(self) -> None:
        for work, place, mine in self.works:
            work.wait()
            if self.loss.is_scattered and self.x is not None:
                self.x[:, place.first : place.last] = mine.transpose(0, 1)
        self.works = []

    def finish(self) -> tuple[Tensor | None, ...]:
        """Return those of states, weight and bias once all chunks are added."""
        self._wait()
        return self.x, self.of_weight, self.of_bias


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, loss: LinearLoss) -> Tensor:
        found = _Gradients(loss, x, weight, ctx.needs_input_grad[:3])
        total = loss._forward(x, weight, bias, labels, found)
        ctx.found, ctx.dtype = found.finish(), weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.found is None:
            raise RuntimeError("the gradients of the loss in chunks were used by an earlier backward pass")
        found, ctx.found = ctx.found, None
        return *(each if each is None else each.mul_(grad).to(ctx.dtype) for each in found), None, None
