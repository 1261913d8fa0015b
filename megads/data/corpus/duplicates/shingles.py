"""Shingles: all stretches of five characters of a text, and how many of them two texts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

LENGTH = 5
"""Characters of a shingle."""

Codes = npt.NDArray[np.uint32]
Kind = Literal["union", "min", "max"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_MOST_SYMBOLS = 7131  # five of them fit into 64 bits
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


def codes_of(text: str) -> Codes:
    """Return the characters of a text as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def count_of(codes: Codes) -> int:
    """Return the number of shingles of a text. As in Megatron-LM, the one that ends the text is not counted."""
    return max(0, len(codes) - LENGTH)


def hashes_of(codes: Codes) -> npt.NDArray[np.uint32]:
    """Return a hash for each shingle of a text, in order: the high half of a sum of products modulo 2**64."""
    count = count_of(codes)
    total = np.zeros(count, np.uint64)
    for place, factor in enumerate(_FACTORS):
        total += (codes[place : place + count] + np.uint64(1)) * factor
    return (total >> np.uint64(32)).astype(np.uint32)


def similarity(one: Codes, other: Codes, kind: Kind = "union") -> float:
    """Return the Jaccard similarity of the sets of shingles of two texts.

    Args:
        one: characters of a text.
        other: of the second text.
        kind: what the number of common shingles is divided by: that of the union, of the smaller set
            or of the larger set.
    """
    first, second = _sets([one, other])
    if not len(first) or not len(second):
        return 0.0
    common = len(np.intersect1d(first, second, assume_unique=True))
    if kind == "min":
        return common / min(len(first), len(second))
    if kind == "max":
        return common / max(len(first), len(second))
    return common / (len(first) + len(second) - common)


def _sets(texts: Sequence[Codes]) -> list[npt.NDArray[Any]]:
    """Return the set of shingles of each text, sorted, as exact numbers that can be compared among these texts."""
    seen = np.zeros(max((int(each.max()) for each in texts if len(each)), default=0) + 1, bool)
    for each in texts:
        seen[each] = True
    symbols = np.flatnonzero(seen)
    if len(symbols) > _MOST_SYMBOLS:
        return _sets_of_many_symbols(texts)
    ranks = np.zeros(len(seen), np.uint64)
    ranks[symbols] = np.arange(len(symbols), dtype=np.uint64)
    found = []
    for each in texts:
        count, digits = count_of(each), ranks[each]
        number = np.zeros(count, np.uint64)
        for place in range(LENGTH):
            number *= np.uint64(len(symbols))
            number += digits[place : place + count]
        # numpy's own unique makes a hash table, which takes ten times as long.
        number.sort()
        is_new = np.ones(count, bool)
        is_new[1:] = number[1:] != number[:-1]
        found.append(number[is_new])
    return found


def _sets_of_many_symbols(texts: Sequence[Codes]) -> list[npt.NDArray[Any]]:
    counts = [count_of(each) for each in texts]
    rows = [
        np.stack([each[at : at + count] for at in range(LENGTH)], 1) for each, count in zip(texts, counts, strict=True)
    ]
    _, numbers = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    return [np.unique(each) for each in np.split(numbers.reshape(-1), np.cumsum(counts)[:-1])]
