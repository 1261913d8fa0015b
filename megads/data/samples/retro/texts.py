"""Texts that are neighbours: contexts of a question, or passages that somebody gives, as the columns of a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def text_neighbors(
    texts: Sequence[Sequence[int]], *, num_neighbors: int, retrieved_length: int, end: int
) -> npt.NDArray[np.int64]:
    """Return the first ``num_neighbors`` of ``texts`` cut to a length, int64 [num_neighbors, retrieved_length].

    What is short is filled up with ``end``, the end-of-document token, as chunks of a database are; where there are not
    so many texts, the rest is nothing else.

    Args:
        texts: tokens of each, the best first.
    """
    found = np.full((num_neighbors, retrieved_length), end, np.int64)
    for place, text in enumerate(texts[:num_neighbors]):
        cut = list(text[:retrieved_length])
        found[place, : len(cut)] = cut
    return found
