"""Samples of Retro: those of a causal model, with the neighbours of each of their chunks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megads.data.retro.project import Project
from megads.data.samples.mix import Mix, MixPlan
from megads.data.samples.retro.rows import RetroRow
from megads.errors import DataError


def retro_row(text: npt.NDArray[np.int64], retrieved: npt.NDArray[np.int64], parts: RetroRow) -> npt.NDArray[np.int64]:
    """Return a sample as a row, int64 [width of ``parts``].

    Args:
        text: int64 [S + 1].
        retrieved: int64 [L, k, r], tokens of each chunk's neighbours and of what continues them.
    """
    row = np.empty(parts.width, np.int64)
    row[parts.text], row[parts.neighbors] = text, retrieved.reshape(-1)
    return row


class RetroSamples:
    """The samples of a split of which a project knows the neighbours.

    A neighbour that is missing, -1, is a text of end-of-document tokens alone. Megatron-core takes the last chunk of
    the database and the first one for it, which may be of the sample's own document.

    Args:
        mix: the samples without neighbours, in the order in which they were queried.
        project: their neighbours.
        split: train, valid or test.
        queried: how many of the samples, from the first on, have neighbours; later ones repeat these.
        size: samples that can be asked for.
        parts: of a row.
        vocab_size: a neighbour with an id outside of 0..vocab_size-1 is refused.
    """

    def __init__(
        self, mix: Mix, project: Project, split: str, *, queried: int, size: int, parts: RetroRow, vocab_size: int
    ):
        self.mix, self.project, self.split = mix, project, split
        self.queried, self.size, self.parts, self.vocab_size = queried, size, parts, vocab_size
        self.corpora = mix.corpora

    @property
    def plan(self) -> MixPlan:
        """How the samples without neighbours are drawn."""
        return self.mix.plan

    @property
    def width(self) -> int:
        """Numbers of a sample."""
        return self.parts.width

    def __len__(self) -> int:
        return self.size

    def corpus_of(self, i: int) -> str:
        """Return the name of the corpus that sample ``i`` is of."""
        return self.mix.corpus_of(i % self.queried)

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [width].

        Raises:
            DataError: a sample or a neighbour holds an id that the model does not know, or a file is broken.
        """
        if not 0 <= i < self.size:
            raise IndexError(f"sample {i} of {self.size}")
        number, parts = i % self.queried, self.parts
        ids = self.project.neighbors(self.split, number * parts.chunks, (number + 1) * parts.chunks)
        retrieved = self.project.tokens(ids[:, : parts.num_neighbors], parts.retrieved_length)
        if retrieved.size and not 0 <= retrieved.min() <= retrieved.max() < self.vocab_size:
            worst = retrieved.max() if retrieved.max() >= self.vocab_size else retrieved.min()
            raise DataError(
                f"{self.project.folder}: a neighbour of {self.split} sample {number} holds token {worst} but the model "
                f"knows {self.vocab_size}; use the tokenizer of the project, and its VOCAB_SIZE"
            )
        return retro_row(self.mix[number], retrieved, parts)
