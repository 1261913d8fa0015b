"""Micro-batches as one rank computes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.comm.rng import Draws, draws_of
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.parallel.documents import Documents, find_documents
from megads.parallel.ulysses import split_batch


@dataclass(frozen=True)
class MicroBatch:
    """This rank's part of one micro-batch."""

    tokens: Tensor  # [micro_batch, S / SP] int64
    labels: Tensor  # the same; negative where a token does not count
    documents: Documents | None  # None: nothing starts over inside the rows
    draws: Draws | None = None  # for dropout; None: it is off


class Splitter:
    """Cuts micro-batches for one rank, and finds the documents in them, as the settings ask.

    Args:
        run: the derived settings.
        groups: for the sequence axis.
        end: the token that ends a document; None where no setting needs it.

    Raises:
        ConfigError: a setting needs it.
    """

    def __init__(self, run: RunConfig, groups: Groups, end: int | None):
        data = run.data
        self.groups, self.end = groups, end
        self.masks_loss = data.eod_mask_loss
        self.resets = {"reset_positions": data.reset_position_ids, "reset_attention": data.reset_attention_mask}
        if end is None and (self.masks_loss or any(self.resets.values())):
            raise ConfigError(
                "EOD_MASK_LOSS, RESET_POSITION_IDS and RESET_ATTENTION_MASK need the token that ends a document, "
                "and none is known; leave them unset, or use a tokenizer that has one"
            )

    def __call__(self, batches: Sequence[Tensor]) -> list[MicroBatch]:
        """Return this rank's part of every ``[micro_batch, S + 1]`` batch."""
        return [self._part(batch) for batch in batches]

    def _part(self, batch: Tensor) -> MicroBatch:
        tokens, labels = split_batch(batch, self.groups, self.end if self.masks_loss else None)
        documents = None
        if self.end is not None:
            documents = find_documents(batch[:, :-1], self.end, self.groups, **self.resets)
        return MicroBatch(tokens, labels, documents)


def with_draws(
    parts: Iterable[MicroBatch], seed: int, first_sample: int, groups: Groups, device: torch.device, turn: int = 0
) -> list[MicroBatch]:
    """Return the parts of a step with what their dropout draws from.

    Samples are numbered as loaders deal them out: ``micro_batch`` to every data-parallel rank in
    turn, for each micro-batch. So a sample's micro-batch draws the same on whichever rank it is.

    Args:
        parts: this rank's, in order.
        seed: of the run's dropout.
        first_sample: number of the step's first sample, counted from the begin of the run.
        groups: the grid's process groups.
        device: of this rank.
        turn: see :class:`megads.comm.rng.Draws`.
    """
    made = []
    for i, part in enumerate(parts):
        sample = first_sample + (i * groups.data_size + groups.data_rank) * len(part.tokens)
        made.append(replace(part, draws=draws_of(seed, sample, groups, device, turn)))
    return made
