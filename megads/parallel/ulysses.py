"""Ulysses sequence parallelism (arXiv 2309.14509): who holds which tokens, and the exchange of heads."""

from __future__ import annotations

from torch import Tensor

from megads.dist.groups import Groups

NOT_COUNTED = -100
"""The label of a token that takes no part in the loss, as in ``torch.nn.functional.cross_entropy``."""


def split_batch(batch: Tensor, groups: Groups, eod: int | None = None) -> tuple[Tensor, Tensor]:
    """Return this sequence rank's tokens and the labels that follow them.

    Args:
        batch: ``[B, S + 1]`` int64, the same on every rank of the sequence and tensor axes.
        groups: for the sequence axis; S must be a multiple of its size.
        eod: labels of tokens that follow this one do not count; None: all count.

    Returns:
        tokens and labels, each ``[B, S / SP]``: positions ``r * S/SP .. (r + 1) * S/SP`` on
        sequence rank ``r``; a label that does not count is :data:`NOT_COUNTED`.
    """
    tokens, labels = batch[:, :-1], batch[:, 1:]
    if eod is not None:
        labels = labels.masked_fill(tokens == eod, NOT_COUNTED)
    length = tokens.shape[1] // groups.seq_size
    mine = slice(groups.seq_rank * length, (groups.seq_rank + 1) * length)
    return tokens[:, mine], labels[:, mine]
