"""Where the neighbours of a text's chunks come from while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megads.data.samples.retro.texts import text_neighbors

Texts = npt.NDArray[np.int64]


class NeighborSource(Protocol):
    """Gives the neighbours of the chunks of one text."""

    def __call__(self, chunk: int, tokens: Sequence[int]) -> Texts:
        """Return the tokens of the neighbours of a chunk, int64 [k, r], the best first.

        Args:
            chunk: its number in the text, from 0.
            tokens: of the chunk.
        """


class GivenNeighbors:
    """Neighbours that somebody gives: the same for every chunk, or those of each chunk.

    A chunk behind those that are given has the neighbours of the last one.

    Args:
        texts: tokens of the texts, for every chunk; a single list is for all of them.
        end: the end-of-document token, which fills up what is short.
    """

    def __init__(
        self, texts: Sequence[Sequence[Sequence[int]]], *, num_neighbors: int, retrieved_length: int, end: int
    ):
        self.chunks = [
            text_neighbors(each, num_neighbors=num_neighbors, retrieved_length=retrieved_length, end=end)
            for each in texts
        ]

    def __call__(self, chunk: int, tokens: Sequence[int]) -> Texts:
        """Return the neighbours of a chunk; see :class:`NeighborSource`."""
        return self.chunks[min(chunk, len(self.chunks) - 1)]


class RetrievedNeighbors:
    """Neighbours that an index finds.

    Args:
        nearest: returns the ids of the chunks that are nearest to each of some chunks, int64 [chunks, n]; -1: none.
        tokens_of: returns the tokens of chunks and of what continues each, int64 [..., r]; of -1, too.
    """

    def __init__(
        self,
        nearest: Callable[[Sequence[Sequence[int]]], npt.NDArray[np.int64]],
        tokens_of: Callable[[npt.NDArray[np.int64]], Texts],
        num_neighbors: int,
    ):
        self.nearest, self.tokens_of, self.num_neighbors = nearest, tokens_of, num_neighbors

    def __call__(self, chunk: int, tokens: Sequence[int]) -> Texts:
        """Return the neighbours of a chunk; see :class:`NeighborSource`."""
        found = np.full(self.num_neighbors, -1, np.int64)
        ids = self.nearest([tokens])[0][: self.num_neighbors]
        found[: len(ids)] = ids
        return self.tokens_of(found)
