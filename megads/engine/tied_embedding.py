"""The embedding that the first and the last pipeline stage share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.comm.groups import ENDS, Groups
from megads.models.gpt import GPT


class TiedEmbedding:
    """The first stage owns the weight, ``[V/t, H]``; the last has a copy of it, which is its output matrix.

    Only the owner has it in its optimizer. The copy's gradient is added to the owner's
    before the data-parallel ranks average theirs, and the weight comes back after the step.
    So the two are the same bits forever, there is one master and one pair of moments, and
    it counts once in the norm. (With an optimizer at both ends the two would drift apart:
    the ends average over data-parallel ranks in different buffers, and so in another order.)

    A frozen one (``is_frozen``) has no gradients: the copy is sent once the owner's weight was read.
    """

    def __init__(self, weight: nn.Parameter, groups: Groups):
        self.weight, self.is_frozen = weight, not weight.requires_grad
        self.group = groups.process_group(ENDS)
        self.owner, copy = groups.ranks(ENDS)
        self.is_copy = groups.rank == copy
        weight.is_copy = self.is_copy  # type: ignore[attr-defined]
        self._collected: Tensor | None = None
        if self.is_copy and not self.is_frozen:
            weight.register_post_accumulate_grad_hook(self._collect)

    def _collect(self, weight: Tensor) -> None:
        """Take a micro-batch's gradient; sums are in float32 at least."""
        if weight.grad is None:  # it comes later, see megads.parallel.weight_gradients
            return
        grad, weight.grad = weight.grad, None
        if self._collected is None:
            self._collected = grad.to(_sum_type(weight))
        else:
            self._collected += grad

    def add_gradients(self) -> None:
        """Add the copy's gradient to the owner's, where the owner's optimizer will look for it. Both ends call it."""
        if self.is_frozen:
            return
        if self.is_copy:
            assert self._collected is not None
            dist.reduce(self._collected, self.owner, group=self.group)
            self._collected = None
            return
        grad = _gradient(self.weight)
        total = grad.to(_sum_type(self.weight))
        dist.reduce(total, self.owner, group=self.group)
        if total is not grad:
            grad.copy_(total)

    def pass_gradient(self) -> Tensor | None:
        """Send the copy's gradient to the owner, which gets it. Both ends call it.

        Returns:
            ``[V/t, H]`` in float32 at least, to be added to the owner's; None where the copy is.
        """
        mine = self._collected if self.is_copy else torch.zeros_like(self.weight, dtype=_sum_type(self.weight))
        assert mine is not None
        self._collected = None
        dist.reduce(mine, self.owner, group=self.group)
        return None if self.is_copy else mine

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Keep the copy out of what the last stage's data-parallel ranks average: its gradient has gone."""
        self.weight.requires_grad_(not (self.is_copy or self.is_frozen))
        yield
        self.weight.requires_grad_(not self.is_frozen)

    def share(self, weight: Tensor | None = None) -> None:
        """Send the owner's weight to the copy. Both ends call it. ``weight``: where it is, unless in the parameter."""
        dist.broadcast(self.weight.data if weight is None else weight, self.owner, group=self.group)


def tie(module: GPT, groups: Groups) -> TiedEmbedding | None:
    """Return what this rank shares with the other end, None where its part ``module`` of the model shares nothing."""
    if groups.pipe_size == 1 or not module.spec.is_tied or not (module.has_embedding or module.has_head):
        return None
    return TiedEmbedding(module.embedding.weight, groups)


def _sum_type(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _gradient(weight: Tensor) -> Tensor:
    """Return the gradient that was summed over micro-batches: DeepSpeed's own in half precision, else autograd's."""
    for name in ("_hp_grad", "grad_accum", "grad"):
        grad = getattr(weight, name, None)
        if grad is not None:
            return grad
    raise AssertionError("the embedding has no gradient")
