"""Micro-batches of packed chats, see ``megads.data.chat.rows``."""

from __future__ import annotations

from torch import Tensor

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.data.chat.rows import ChatRow
from megads.engine.micro_batches import MicroBatch, Splitter
from megads.parallel.documents import numbered_documents
from megads.parallel.ulysses import rank_tokens


class ChatSplitter(Splitter):
    """Makes the micro-batches of chats: every example of a row is a document, and only tokens with a label count."""

    def __init__(self, run: RunConfig, groups: Groups):
        super().__init__(run, groups, None)
        self.masks_loss, self.row = True, ChatRow(run.model.seq_length)

    def part_of(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of a batch of rows."""
        row = self.row
        if batch.shape[1] != row.width:
            raise ValueError(f"rows of {batch.shape[1]} numbers; those of SEQ={row.seq_length} have {row.width}")
        mine = rank_tokens(row.seq_length, self.groups)
        documents = numbered_documents(batch[:, row.numbers], self.groups)
        return MicroBatch(batch[:, row.tokens][:, mine], batch[:, row.labels][:, mine], documents)
