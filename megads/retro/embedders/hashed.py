"""Words and pairs of words, hashed: a vector that needs no model.

For laptops, tests and trials. It finds texts that share words, not texts that mean the same.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from megads.retro.embedders.base import Progress

DIM = 256
_WORD = re.compile(r"\w+|[^\w\s]")
_EVERY = 256  # texts between two calls of ``progress``


class HashedWords:
    """Counts of hashed words and pairs of neighbours, with a hashed sign, of length 1; see :class:`Embedder`."""

    dim = DIM
    summary = f"hashed words, {DIM} numbers (no model: for trials)"

    def embed(self, texts: Sequence[str], progress: Progress = lambda texts: None) -> npt.NDArray[np.float32]:
        """Return a vector for each text, float32 [texts, dim]."""
        out = np.zeros((len(texts), DIM), np.float64)
        for number, text in enumerate(texts):
            codes = np.array([zlib.crc32(each.encode("utf-8", "surrogatepass")) for each in _features(text)], np.int64)
            np.add.at(out[number], codes % DIM, 1.0 - 2.0 * (codes >> 31))
            if number % _EVERY == _EVERY - 1:
                progress(_EVERY)
        progress(len(texts) % _EVERY)
        lengths = np.sqrt((out * out).sum(axis=1, keepdims=True))
        return (out / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _features(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    yield from words
    for first, second in itertools.pairwise(words):
        yield f"{first} {second}"
