"""Pairs that may be near-duplicates: documents with the same signature in one band share a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SIMILAR = 0.5
"""Pairs above this similarity are reported, as in Megatron-LM."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Compare = Callable[[Ints], Floats]
"""Pairs of documents [m, 2] -> their similarities [m]."""

_ROWS = 1 << 14  # signatures that are read at once
_MIX = np.uint64(0x9FB21C651E98DF25)


@dataclass(frozen=True)
class Buckets:
    """Documents that share a bucket; no bucket has fewer than two."""

    members: Ints  # documents of all buckets, those of one bucket in ascending order
    sizes: Ints  # of each bucket


@dataclass(frozen=True)
class Pairs:
    """Compared pairs, each once, in ascending order."""

    documents: Ints  # [m, 2], the earlier document first
    similarities: Floats  # [m]


def buckets_of(signatures: npt.NDArray[np.uint32], num_bands: int) -> Buckets:
    """Return the buckets of all bands of signatures [documents, num_seeds], which may be in a file."""
    columns = signatures.shape[1] // num_bands
    members, sizes = [], []
    for band in range(num_bands):
        keys = _keys(signatures, range(band * columns, (band + 1) * columns))
        order = np.argsort(keys, kind="stable")
        ends = np.flatnonzero(np.diff(keys[order])) + 1
        found = np.diff(np.concatenate([[0], ends, [len(order)]]))
        shared = found > 1
        members.append(order[np.repeat(shared, found)])
        sizes.append(found[shared])
    return Buckets(np.concatenate(members).astype(np.int64), np.concatenate(sizes).astype(np.int64))


def _keys(signatures: npt.NDArray[np.uint32], columns: range) -> npt.NDArray[np.uint64]:
    """Return a number for each document that depends on ``columns`` of its signature; the file is read once."""
    keys = np.zeros(len(signatures), np.uint64)
    for start in range(0, len(keys), _ROWS):
        part, key = signatures[start : start + _ROWS], keys[start : start + _ROWS]
        for column in columns:
            key ^= part[:, column]
            key *= _MIX
            key ^= key >> np.uint64(29)
    return keys


def compare_buckets(buckets: Buckets, num_documents: int, rounds: int, seed: int, compare: Compare) -> Pairs:
    """Compare documents of the same bucket, each pair once.

    In a round, a document is drawn in each bucket and compared with all others of it. It then leaves
    the bucket with those that are similar to it.

    Args:
        buckets: of all bands.
        num_documents: of all inputs.
        rounds: at most; -1: until every bucket is empty.
        seed: of the draws.
        compare: computes similarities.
    """
    draw = np.random.default_rng(seed)
    members, sizes = buckets.members, buckets.sizes
    known: Ints = np.empty(0, np.int64)  # pairs as one number, ascending
    values: Floats = np.empty(0)
    done = 0
    while len(sizes) and done != rounds:
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        mains = members[starts + (draw.random(len(sizes)) * sizes).astype(np.int64)]
        mains = np.repeat(mains, sizes)
        others = members != mains
        first, second = np.minimum(members, mains), np.maximum(members, mains)
        numbers = first * num_documents + second
        known, values = _compare_new(np.unique(numbers[others]), num_documents, known, values, compare)
        similar = np.zeros(len(members), bool)
        similar[others] = values[np.searchsorted(known, numbers[others])] > SIMILAR
        stays = others & ~similar
        bucket = np.repeat(np.arange(len(sizes)), sizes)[stays]
        left = np.bincount(bucket, minlength=len(sizes))
        members = members[stays][left[bucket] > 1]
        sizes = left[left > 1]
        done += 1
    return Pairs(np.stack(np.divmod(known, max(1, num_documents)), 1), values)


def _compare_new(
    numbers: Ints, num_documents: int, known: Ints, values: Floats, compare: Compare
) -> tuple[Ints, Floats]:
    """Return the pairs that are known now, and their similarities."""
    new = np.setdiff1d(numbers, known, assume_unique=True)
    if not len(new):
        return known, values
    found = compare(np.stack(np.divmod(new, num_documents), 1))
    numbers, values = np.concatenate([known, new]), np.concatenate([values, found])
    order = np.argsort(numbers, kind="stable")
    return numbers[order], values[order]
