"""Loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from megads.engine.base import Engine


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``; infinity where that is too large for a float, nan for nan."""
    return math.exp(loss) if not loss > 700 else math.inf


def evaluate(
    engine: Engine,
    steps: Iterable[Sequence[Tensor]],
    device: torch.device,
    give_up: Callable[[], object] = lambda: False,
) -> float | None:
    """Return the mean loss over ``steps``, in nats per token, the same on every rank; None when it was given up.

    Dropout is off and no generator moves, so evaluating does not change the training that follows.

    Args:
        engine: whose weights are judged.
        steps: for each global batch this rank's micro-batches, ``[micro_batch, seq_length + 1]``
            int64; as many on every rank.
        device: of the model.
        give_up: asked before each global batch but the first; the same on every rank.
    """
    losses: list[float] = []
    for batches in steps:
        if losses and give_up():
            return None
        losses.append(float(engine.eval_loss([batch.to(device) for batch in batches])))
    return math.fsum(losses) / len(losses)
