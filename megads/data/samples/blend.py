"""Which documents belong to which split, and which corpus each sample comes from.

Both rules are Megatron-core's, number by number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from megads.errors import DataError

BlendIndex = tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]
"""For each sample: int16, the dataset it comes from; int64, its number within that dataset."""

_MOST_DATASETS = 2**15 - 1  # int16
_FEW_DATASETS = 64  # up to here a Python loop beats numpy's cost of a call


def split_documents(split: Sequence[float], n: int) -> list[range]:
    """Cut documents ``0..n-1`` into consecutive ranges proportional to ``split``.

    Three entries (train, valid, test) at least, missing ones are 0. The borders are the
    cumulative shares times ``n``, rounded half to even (Megatron-core's rule).
    """
    shares = [*split, *[0.0] * (3 - len(split))]
    total = sum(shares)
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not total > 0:
        raise DataError(f"split {', '.join(map(str, split))}: the shares must be 0 or larger, and one of them positive")
    borders = [round(border * n) for border in itertools.accumulate(share / total for share in shares)]
    return [range(start, end) for start, end in itertools.pairwise([0, *borders])]


def normalised(weights: Sequence[float]) -> list[float]:
    """Return ``weights`` scaled to sum 1."""
    total = sum(weights)
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not total > 0:
        raise DataError(f"weights {', '.join(map(str, weights))}: must be 0 or larger, and one of them positive")
    return [weight / total for weight in weights]


def blend_index(weights: Sequence[float], size: int) -> BlendIndex:
    """Return where each of ``size`` samples of a blend comes from.

    Sample ``i`` is taken from the dataset that lags most behind its share,
    ``weight * max(i, 1) - taken``; the first of several equals. So every prefix of the
    blend holds each dataset in proportion, to within one sample.
    """
    return _blend(normalised(weights), size, [size] * len(weights))


def blend_all(sizes: Sequence[int]) -> BlendIndex:
    """Return a blend in proportion to ``sizes`` that takes every sample of every dataset once."""
    return _blend(normalised(sizes), sum(sizes), sizes)


def _blend(weights: list[float], size: int, limits: Sequence[int]) -> BlendIndex:
    if len(weights) > _MOST_DATASETS:
        raise DataError(f"{len(weights)} corpora can not be blended; at most {_MOST_DATASETS} are possible")
    if len(weights) == 1:
        return np.zeros(size, np.int16), np.arange(size, dtype=np.int64)
    picks = _picks_few if len(weights) <= _FEW_DATASETS else _picks_many
    dataset_index = picks(weights, size, limits)
    sample_index = np.empty(size, np.int64)
    for dataset in range(len(weights)):
        mine = np.flatnonzero(dataset_index == dataset)
        sample_index[mine] = np.arange(len(mine))
    return dataset_index, sample_index


def _picks_few(weights: list[float], size: int, limits: Sequence[int]) -> npt.NDArray[np.int16]:
    # The products are formed anew at each step, as upstream does: running sums would round
    # differently and break ties another way.
    out = np.empty(size, np.int16)
    left = list(limits)
    active = [dataset for dataset in range(len(weights)) if left[dataset] > 0]
    shares, taken = [weights[dataset] for dataset in active], [0] * len(active)
    for i in range(size):
        step = i or 1
        lags = [share * step - count for share, count in zip(shares, taken)]  # noqa: B905
        best = lags.index(max(lags))
        taken[best] += 1
        dataset = out[i] = active[best]
        if taken[best] == left[dataset]:
            del active[best], shares[best], taken[best]
    return out


def _picks_many(weights: list[float], size: int, limits: Sequence[int]) -> npt.NDArray[np.int16]:
    out = np.empty(size, np.int16)
    shares, taken, most = np.array(weights), np.zeros(len(weights)), np.array(limits)
    shut = np.where(most > 0, 0.0, np.inf)
    for i in range(size):
        best = int(np.argmax(shares * (i or 1) - taken - shut))
        taken[best] += 1
        out[i] = best
        if taken[best] == most[best]:
            shut[best] = np.inf
    return out
