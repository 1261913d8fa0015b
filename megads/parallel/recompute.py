"""What is computed again in the backward pass instead of being kept, and what never stands whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megads.parallel.host_checkpoints import HostCheckpoints

Step = Callable[[Tensor], Tensor]
Checkpoint = Callable[..., Tensor]
"""``(function, *inputs) -> function(*inputs)`` that keeps the inputs and calls ``function`` again in the backward
pass. No generator is put back: what draws in ``function`` seeds it first (``megads.comm.rng``)."""


def torch_checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return ``function(*inputs)``; of what is inside, autograd keeps the inputs alone."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def reentrant_checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Do as :func:`torch_checkpoint`, and run a whole backward pass of ``function`` inside the outer one.

    Modules are entered and left once more, forwards and backwards, as ZeRO 3 needs it to
    gather their parameters. Without an input that requires a gradient there is none.
    """
    return checkpoint(function, *inputs, use_reentrant=True, preserve_rng_state=False)


@dataclass(frozen=True)
class Recompute:
    """What is computed again; the default keeps everything.

    The numbers do not change by a bit: dropout seeds its generator at each draw, so it draws the
    same again. Without gradients nothing is done twice or kept.

    Args:
        granularity: ``selective``: the attention core (arXiv 2205.05198, section 5); ``full``: layers.
        method: of full; ``uniform``: the layers of a stage in groups of ``num_layers``, the
            last one perhaps smaller, each keeping its input; ``block``: each of the first
            ``num_layers`` layers of a stage, which keeps its input, and none of the others.
        host: where the inputs of recomputed layers are kept; None: on the device.
        loss_chunk: tokens whose logits stand at a time; 0: those of all tokens.
        mlp_tiles: parts of the tokens that pass an MLP one after the other, and again in the backward pass; 1: all
            together, and what is inside is kept.
    """

    granularity: Literal["none", "selective", "full"] = "none"
    method: Literal["uniform", "block"] = "uniform"
    num_layers: int = 1
    checkpoint: Checkpoint = torch_checkpoint
    host: HostCheckpoints | None = None
    loss_chunk: int = 0
    mlp_tiles: int = 1

    def core(self, attend: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return ``attend(*inputs)``, the attention core, recomputed if that is all that is."""
        return _again(self.checkpoint, attend, *inputs) if self.granularity == "selective" else attend(*inputs)

    def layers(self, blocks: Sequence[Step]) -> list[Step]:
        """Return steps that do what ``blocks``, the layers of one stage, do one after the other to one micro-batch."""
        if self.granularity != "full":
            return list(blocks)
        checkpoint = self.checkpoint if self.host is None else partial(self.host.begin().keep, self.checkpoint)
        segment = partial(_segment, checkpoint)
        if self.method == "block":
            return [*map(segment, ([block] for block in blocks[: self.num_layers])), *blocks[self.num_layers :]]
        return [segment(blocks[i : i + self.num_layers]) for i in range(0, len(blocks), self.num_layers)]

    def segments(self, layers: int) -> int:
        """Return how many segments of a stage with ``layers`` layers are recomputed, for one micro-batch."""
        if self.granularity == "full":
            return min(self.num_layers, layers) if self.method == "block" else -(-layers // self.num_layers)
        return layers if self.granularity == "selective" else 0


def _segment(checkpoint: Checkpoint, blocks: Sequence[Step]) -> Step:
    def through(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x)
        return x

    return lambda x: _again(checkpoint, through, x)


def _again(checkpoint: Checkpoint, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return checkpoint(function, *inputs) if torch.is_grad_enabled() else function(*inputs)
