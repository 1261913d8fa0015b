"""MinHash signatures of texts, by datasketch."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.corpus.duplicates.shingles import codes_of, hashes_of
from megads.errors import DependencyError

Signature = npt.NDArray[np.uint32]

_AT_ONCE = 512  # shingles: their products stay in the cache


class Signer:
    """Makes signatures of ``num_seeds`` numbers, drawn from ``seed``."""

    def __init__(self, num_seeds: int, seed: int):
        self._make = _library()
        self._num_seeds, self._seed = num_seeds, seed
        self._permutations = self._make(num_perm=num_seeds, seed=seed, scheme="affine32").permutations

    def sign(self, text: str) -> Signature:
        """Return the signature of a text [num_seeds]; without shingles all numbers are the largest."""
        hashes = hashes_of(codes_of(text))
        sketch = self._make(
            num_perm=self._num_seeds,
            seed=self._seed,
            scheme="affine32",
            hashfunc=_as_is,
            permutations=self._permutations,
        )
        for start in range(0, len(hashes), _AT_ONCE):
            # One item whose hash is an array: the library's arithmetic is that of all of them at once.
            sketch.update_batch([hashes[start : start + _AT_ONCE]])
        signature: Signature = sketch.hashvalues
        return signature


def packed(signature: Signature) -> str:
    """Return a signature as text."""
    return base64.b64encode(signature.astype("<u4").tobytes()).decode()


def unpacked(text: str, num_seeds: int) -> Signature:
    """Return the signature that :func:`packed` wrote; ValueError if it is not one of ``num_seeds`` numbers."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if len(content) != 4 * num_seeds:
        raise ValueError(f"is not a signature of {num_seeds} numbers")
    return np.frombuffer(content, "<u4")


def _as_is(value: Any) -> Any:
    return value


def _library() -> Any:
    try:
        from datasketch import MinHash
    except ImportError:
        raise DependencyError(
            "megads corpus find-duplicates needs datasketch, which is not installed; pip install -e '.[corpus]'"
        ) from None
    return MinHash
