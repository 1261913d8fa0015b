"""Gradients of norms whose ranks see a part of the tokens or heads each: summed once a step, all in one message.

Summed where autograd finds them they are two small all-reduces in every layer's backward pass, for each micro-batch,
and each of them waits for all ranks. The sum of what the micro-batches added up is the same sum, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist


class PartialGradients:
    """The weights of ``module`` whose ranks hold a part of the gradient each; ``partial_over`` is their group."""

    def __init__(self, module: nn.Module):
        self.weights = [
            each
            for each in module.parameters()
            if each.requires_grad and getattr(each, "partial_over", None) is not None
        ]
        self.are_taken = self.is_done = False

    def __contains__(self, parameter: object) -> bool:
        return any(each is parameter for each in self.weights)

    def take(self) -> None:
        """Have the backward pass leave the gradients as they are: :meth:`sum` is called once a step."""
        self.are_taken = True
        for weight in self.weights:
            weight.sums_later = True  # type: ignore[attr-defined]

    def sum_before(self, owner: Any, method: str, gradient_of: Callable[[Any], Tensor | None]) -> None:
        """Have the gradients summed when ``method`` is about to reduce those of a step over data-parallel ranks.

        Args:
            gradient_of: returns what a weight's micro-batches added up to, to be written to.
        """
        if not self.weights or self.are_taken:
            return
        self.take()
        reduce = getattr(owner, method)

        def sum_and_reduce(*args: Any, **kwargs: Any) -> Any:
            gradients = [gradient_of(weight) for weight in self.weights]
            assert all(gradient is not None for gradient in gradients)
            self.sum([gradient for gradient in gradients if gradient is not None])
            return reduce(*args, **kwargs)

        setattr(owner, method, sum_and_reduce)

    def sum(self, gradients: Sequence[Tensor]) -> None:
        """Sum ``gradients``, the same elements on every rank of the group, in place. Collective."""
        assert not self.is_done, "the gradients of norms were summed twice"
        self.is_done = True
        if not gradients:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self.weights[0].partial_over)  # type: ignore[attr-defined]
        for gradient, total in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(total.view(gradient.shape))

    def check(self) -> None:
        """Check, once a step and before the update, that the step's gradients were summed."""
        assert self.is_done or not (self.are_taken and self.weights), (
            "the gradients of norms were not summed over tensor-parallel ranks"
        )
        self.is_done = False
