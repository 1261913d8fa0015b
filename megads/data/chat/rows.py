"""Examples as one row of integers: what a micro-batch holds of them.

::

    tokens[S] | labels[S] | numbers[S]      of the example in the row that each token belongs to; -1: padding

Labels are the tokens that follow, -1 where none counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChatRow:
    """Where things are in a row."""

    seq_length: int

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return 3 * self.seq_length

    @property
    def tokens(self) -> slice:
        """The tokens."""
        return slice(0, self.seq_length)

    @property
    def labels(self) -> slice:
        """What follows each."""
        return slice(self.seq_length, 2 * self.seq_length)

    @property
    def numbers(self) -> slice:
        """The example of each."""
        return slice(2 * self.seq_length, 3 * self.seq_length)

    def make(self, examples: Sequence[tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]]) -> Row:
        """Return the row of the tokens and labels of examples, in their order; of none one that does not count."""
        row = np.full(self.width, -1, np.int64)
        row[self.tokens] = 0
        at = 0
        for number, (tokens, labels) in enumerate(examples):
            end = at + len(tokens)
            if end > self.seq_length:
                raise ValueError(f"examples of {end} tokens do not fit a row of {self.seq_length}")
            row[at:end] = tokens
            row[self.labels][at:end] = labels
            row[self.numbers][at:end] = number
            at = end
        return row
