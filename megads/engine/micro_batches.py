"""Micro-batches as one rank computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.comm.rng import Draws, draws_of
from megads.config.schema import RunConfig
from megads.data.samples.masked.rows import BertRow, T5Row
from megads.data.samples.retro.rows import RetroRow
from megads.engine.base import Labelled
from megads.engine.optim.sophia import uniforms
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.models.bert import PairLabels
from megads.parallel.documents import Documents, Lengths, find_documents
from megads.parallel.ulysses import rank_tokens, split_batch


@dataclass(frozen=True)
class MicroBatch:
    """This rank's part of one micro-batch."""

    # [micro_batch, S / SP] int64; of an encoder with a decoder those of either, and of neighbours behind the row's
    tokens: Tensor
    labels: Tensor  # the same, of its decoder; negative where a token does not count
    documents: Documents | None  # None: nothing starts over inside the rows
    draws: Draws | None = None  # for dropout; None: it is off
    pairs: Tensor | None = None  # [micro_batch] int64: labels of pairs of sentences, negative where none counts

    @property
    def target(self) -> Any:
        """What the outputs are compared with."""
        return self.labels if self.pairs is None else PairLabels(self.labels, self.pairs)


class Splitter:
    """Makes the micro-batches of one rank: its tokens, the documents in them, what counts and what dropout draws.

    Raises:
        ConfigError: a setting needs it.
    """

    def __init__(self, run: RunConfig, groups: Groups, end: int | None):
        data = run.data
        self.groups, self.end = groups, end
        self.seed, self.dropout_seed = run.train.seed, run.train.seed_of_dropout
        self.model, self.samples = run.model, FAMILIES[run.model.family].samples
        self.masks_loss = data.eod_mask_loss or FAMILIES[run.model.family].reads_sentences
        self.resets = {"reset_positions": data.reset_position_ids, "reset_attention": data.reset_attention_mask}
        needs_end = data.eod_mask_loss or any(self.resets.values())
        if end is None and needs_end and not run.finetune.is_chat:
            raise ConfigError(
                "EOD_MASK_LOSS, RESET_POSITION_IDS and RESET_ATTENTION_MASK need the token that ends a document, "
                "and none is known; leave them unset, or use a tokenizer that has one"
            )

    def __call__(self, batches: Sequence[Tensor]) -> list[MicroBatch]:
        """Return this rank's part of every batch: rows of ``S + 1`` tokens, or those of the family's samples."""
        return [getattr(batch, "micro_batch", None) or self.part_of(batch) for batch in batches]

    def prepare(self, batch: Tensor) -> Tensor:
        """Return ``batch``, for which :meth:`__call__` has nothing left to do; for threads that read ahead."""
        batch.micro_batch = self.part_of(batch)  # type: ignore[attr-defined]
        return batch

    def part_of(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of a batch."""
        if self.samples == "bert":
            return self._hidden_part(batch)
        if self.samples == "retro":
            return self._part_with_neighbors(batch)
        return self._cut_out_part(batch) if self.samples == "t5" else self._part(batch)

    def _part(self, batch: Tensor) -> MicroBatch:
        tokens, labels = split_batch(batch, self.groups, self.end if self.masks_loss else None)
        documents = None
        if self.end is not None:
            documents = find_documents(batch[:, :-1], self.end, self.groups, **self.resets)
        return MicroBatch(tokens, labels, documents)

    def labelled(self, batches: Sequence[Labelled]) -> list[MicroBatch]:
        """Return this rank's part of batches that have labels; documents start over in them where they say so."""
        return [
            MicroBatch(self._own(batch.tokens), self._own(batch.labels), self._restarts(batch)) for batch in batches
        ]

    def _restarts(self, batch: Labelled) -> Documents | None:
        if not batch.restarts or self.end is None:
            return None
        return find_documents(batch.tokens, self.end, self.groups, **self.resets)

    def _own(self, rows: Tensor) -> Tensor:
        length = rows.shape[1] // self.groups.seq_size
        return rows[:, self.groups.seq_rank * length : (self.groups.seq_rank + 1) * length]

    def _hidden_part(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of rows of :class:`megads.data.samples.masked.rows.BertRow`."""
        row, groups = BertRow(self.model.seq_length), self.groups
        if batch.shape[1] != row.width:
            raise ValueError(f"rows of {batch.shape[1]} numbers; those of SEQ={row.seq_length} have {row.width}")
        mine = rank_tokens(row.seq_length, groups)
        types = batch[:, row.types][:, mine] if self.model.token_types else None
        documents = Documents(lengths=Lengths(batch[:, row.length].clamp(min=1), row.seq_length), types=types)
        pairs = None
        if self.model.binary_head:  # the first token of a sample is on the first rank
            pairs = batch[:, row.is_random] if groups.seq_rank == 0 else torch.full_like(batch[:, row.is_random], -1)
        return MicroBatch(batch[:, row.text][:, mine], batch[:, row.labels][:, mine], documents, pairs=pairs)

    def _cut_out_part(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of rows of :class:`megads.data.samples.masked.rows.T5Row`, of either text."""
        row, groups = T5Row(self.model.seq_length, self.model.decoder_seq_length), self.groups
        if batch.shape[1] != row.width:
            parts = f"SEQ={row.encoder_length} and DECODER_SEQ={row.decoder_length}"
            raise ValueError(f"rows of {batch.shape[1]} numbers; those of {parts} have {row.width}")
        mine, said = rank_tokens(row.encoder_length, groups), rank_tokens(row.decoder_length, groups, "DECODER_SEQ")
        tokens = torch.cat([batch[:, row.text_enc][:, mine], batch[:, row.text_dec][:, said]], dim=1)
        lengths = Lengths(batch[:, row.length_enc].clamp(min=1), row.encoder_length)
        documents = Documents(lengths=lengths, encoder_tokens=mine.stop - mine.start)
        return MicroBatch(tokens, batch[:, row.labels][:, said], documents)

    def _part_with_neighbors(self, batch: Tensor) -> MicroBatch:
        """Return this rank's part of rows of :class:`megads.data.samples.retro.rows.RetroRow`: whole chunks."""
        row = RetroRow.of(self.model)
        if batch.shape[1] != row.width:
            raise ValueError(f"rows of {batch.shape[1]} numbers; those of SEQ={row.seq_length} have {row.width}")
        part = self._part(batch[:, row.text])
        mine = rank_tokens(row.chunks, self.groups, "SEQ / RETRO_CHUNK_LENGTH")
        neighbors = batch[:, row.neighbors].unflatten(1, (row.chunks, row.of_chunk))[:, mine].flatten(1)
        tokens = torch.cat([part.tokens, neighbors], dim=1)
        return replace(part, tokens=tokens, documents=Documents(encoder_tokens=part.tokens.shape[1]))

    def with_dropout(self, parts: Sequence[MicroBatch], first_sample: int, turn: int = 0) -> list[MicroBatch]:
        """Return the parts of a step with what their dropout draws from: their number in the run, on any rank.

        Args:
            first_sample: number of the step's first sample, counted from the start of the run.
            turn: see :class:`megads.comm.rng.Draws`.
        """
        firsts = [first_sample + self._first_row(i, part) for i, part in enumerate(parts)]
        return [
            replace(part, draws=draws_of(self.dropout_seed, first, self.groups, part.tokens.device, turn))
            for first, part in zip(firsts, parts, strict=True)
        ]

    def with_random_labels(self, parts: Sequence[MicroBatch], step: int) -> list[MicroBatch]:
        """Return ``parts`` with numbers in [0, 1) for labels, from which the model's own labels are drawn.

        They follow from the seed, the step, and the place in the step's samples, not from the layout.
        Pairs of sentences do not count.
        """
        made = []
        for i, part in enumerate(parts):
            rows, length = part.labels.shape
            first, at = self._first_row(i, part), self.groups.seq_rank * length
            numbers = uniforms((self.seed, step), range(first, first + rows), at + length)[:, at:].to(
                part.labels.device
            )
            pairs = None if part.pairs is None else torch.full_like(part.pairs, -1)
            made.append(replace(part, labels=numbers.masked_fill(part.labels < 0, -1.0), pairs=pairs))
        return made

    def _first_row(self, index: int, part: MicroBatch) -> int:
        """Return the place of a micro-batch in the samples of its step.

        Loaders deal samples out: ``micro_batch`` to every data-parallel rank in turn, for each micro-batch.
        """
        return (index * self.groups.data_size + self.groups.data_rank) * len(part.labels)

    def counted_tokens(self, parts: Sequence[MicroBatch]) -> Tensor:
        """Return how many tokens of the step count, over all ranks, [] int64. Collective where not all do."""
        if not self.masks_loss:
            count = sum(part.labels.numel() for part in parts) * self.groups.data_seq_size
            return torch.full((), count, device=parts[0].labels.device)  # not uploaded
        found = torch.stack([(part.labels >= 0).sum() for part in parts]).sum()
        if self.groups.data_seq is not None:
            dist.all_reduce(found, group=self.groups.data_seq)
        return found

    def token_weight(self, parts: Sequence[MicroBatch]) -> Tensor:
        """Return what the sum of a micro-batch's token losses is multiplied by, [] float32.

        An engine averages over micro-batches and over data x seq ranks, which hold unequal
        numbers of counted tokens; with this weight the result is the mean over all counted
        tokens of the step, the same in every layout.
        """
        return len(parts) * self.groups.data_seq_size / self.counted_tokens(parts).clamp(min=1).float()
