"""The terms that a step's loss is the sum of, where it has several."""

from __future__ import annotations

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.models.gpt import GPT


class LossTerms:
    """Sums the terms of the losses of a step's micro-batches; nothing is sent where the loss is one term.

    Args:
        module: whose ``loss_names`` they have, and whose ``losses`` are those of the last loss.
    """

    def __init__(self, module: GPT, device: torch.device):
        self.module = module
        self.names = module.loss_names if len(module.loss_names) > 1 else ()
        self.sums = torch.zeros(len(self.names), device=device)

    def add(self) -> None:
        """Take note of the loss that was just found."""
        if self.names:
            assert self.module.losses is not None
            self.sums += self.module.losses

    def mean(self, count: int, groups: Groups) -> dict[str, Tensor]:
        """Return the mean of ``count`` micro-batches and of all data x seq ranks, at every stage. Collective."""
        if not self.names:
            return {}
        found = self.sums / count
        if groups.data_seq is not None:
            dist.all_reduce(found, group=groups.data_seq)
            found /= groups.data_seq_size
        if groups.pipe_size > 1:  # stages but the last have found none
            dist.all_reduce(found, group=groups.process_group("pipe"))
        return dict(zip(self.names, found.unbind(), strict=True))
