"""Whether what a sample holds fits the model: looked at on the host, before a device reads a row that is not there.

A device does not say what is wrong with an id beyond a table: with tensor parallelism it gives zeros, without it
the program ends in another place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megads.data.samples.masked.rows import BertRow, RowParts


@dataclass(frozen=True)
class Bound:
    """Which numbers a part of a row may have: ``first`` to ``end - 1``."""

    what: str
    where: slice
    first: int
    end: int

    def problem(self, row: npt.NDArray[np.int64]) -> str:
        """Return what is wrong with a row, as ``token 77, but the model knows 64 tokens``; nothing where it is right.

        Of a row of 4,097 tokens about 1.2 ns per token.
        """
        part = row[self.where]
        # Counted from the first one, what is below it is very large as an unsigned number: one pass over the row.
        places = (part - self.first if self.first else part).view(np.uint64)
        if places.max() < self.end - self.first:
            return ""
        wrong = part[places >= self.end - self.first][0]
        if self.what == "token":
            return f"token {wrong}, but the model knows {self.end} tokens"
        return f"{self.what} {wrong}, which is not one of {self.first} to {self.end - 1}"


def bounds_of(vocab_size: int, parts: RowParts | None) -> tuple[Bound, ...]:
    """Return the bounds of a sample's parts for a model of ``vocab_size`` tokens; ``parts`` None: all are tokens."""
    if parts is None:
        return (Bound("token", slice(None), 0, vocab_size),)
    if isinstance(parts, BertRow):
        return (
            Bound("token", parts.text, 0, vocab_size),
            Bound("label", parts.labels, -1, vocab_size),
            Bound("token type", parts.types, 0, 2),
            Bound("length", slice(parts.length, parts.length + 1), 0, parts.seq_length + 1),
            Bound("label of the pair", slice(parts.is_random, parts.is_random + 1), -1, 2),
        )
    return (
        Bound("token", parts.text_enc, 0, vocab_size),
        Bound("token", parts.text_dec, 0, vocab_size),
        Bound("label", parts.labels, -1, vocab_size),
        Bound("length", slice(parts.length_enc, parts.length_enc + 1), 0, parts.encoder_length + 1),
    )
