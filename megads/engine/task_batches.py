"""Micro-batches of labelled rows, see ``megads.data.tasks.rows``."""

from __future__ import annotations

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.data.tasks.rows import TaskRow
from megads.engine.chat_batches import ChatSplitter
from megads.engine.micro_batches import MicroBatch, Splitter
from megads.errors import ConfigError
from megads.parallel.documents import Documents, Lengths


class TaskSplitter(Splitter):
    """Makes the micro-batches of a task: every choice is a row of tokens, and the first sequence rank has the labels.

    Raises:
        ConfigError: the rows cannot be cut into equal parts.
    """

    def __init__(self, run: RunConfig, groups: Groups):
        super().__init__(run, groups, None)
        self.masks_loss = True
        self.seq_length, self.has_types = run.model.seq_length, run.model.token_types > 0
        if self.seq_length % groups.seq_size:
            raise ConfigError(f"SEQ={self.seq_length} cannot be split over SP={groups.seq_size} ranks")

    def part_of(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of a batch of rows."""
        size, groups = self.seq_length, self.groups
        row = TaskRow(size, (batch.shape[1] - 1) // TaskRow(size).part)
        rows = batch[:, :-1].reshape(-1, row.part)
        tokens = rows[:, :size].chunk(groups.seq_size, dim=1)[groups.seq_rank]
        labels = batch[:, -1]
        if groups.seq_rank:
            labels = torch.full_like(labels, -1)
        types = None
        if self.has_types:
            types = rows[:, size : 2 * size].chunk(groups.seq_size, dim=1)[groups.seq_rank]
        return MicroBatch(tokens, labels, Documents(lengths=Lengths(rows[:, -1], size), types=types))


def make_splitter(run: RunConfig, groups: Groups, end: int | None) -> Splitter:
    """Return what makes the micro-batches of a run; see :class:`Splitter`."""
    if run.finetune.is_chat:
        return ChatSplitter(run, groups)
    return TaskSplitter(run, groups) if run.model.num_classes else Splitter(run, groups, end)
