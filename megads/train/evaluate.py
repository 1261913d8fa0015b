"""Loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from megads.dist.groups import Groups
from megads.engine.base import Engine


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``; infinity where that is too large for a float, nan for nan."""
    return math.exp(loss) if not loss > 700 else math.inf


def evaluate(engine: Engine, batches: Iterable[Tensor], groups: Groups, device: torch.device) -> float:
    """Return the mean loss over ``batches`` and over the data-parallel ranks, in nats per token.

    Dropout is off and no generator moves, so evaluating does not change the training that follows.

    Args:
        engine: whose weights are judged.
        batches: ``[micro_batch, seq_length + 1]`` int64 tensors, as many on every rank.
        groups: the grid's process groups.
        device: of the model.
    """
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in batches:
        total += torch.stack([engine.eval_loss(batch.to(device)).double(), torch.ones_like(total[0])])
    if groups.data_seq is not None:
        dist.all_reduce(total, group=groups.data_seq)
    return float(total[0] / total[1])
