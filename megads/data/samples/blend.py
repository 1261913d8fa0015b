"""Which dataset each sample of a blend comes from; Megatron-core's rule, number by number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.samples.lanes import Block, blend_blocks, walk_plainly
from megads.data.samples.recipe import Making, Spec, collect
from megads.errors import DataError

BlendIndex = tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]
"""For each sample: int16, the dataset it comes from; int64, its number within that dataset."""

_MOST_DATASETS = 2**15 - 1  # int16
_SHORT = 1 << 12  # so few samples are faster one by one


def normalised(weights: Sequence[float]) -> list[float]:
    """Return ``weights`` scaled to sum 1."""
    total = sum(weights)
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not total > 0:
        raise DataError(f"weights {', '.join(map(str, weights))}: must be 0 or larger, and one of them positive")
    return [weight / total for weight in weights]


@dataclass(frozen=True)
class BlendRecipe:
    """The order in which ``size`` samples are taken from several datasets.

    Sample ``i`` is taken from the dataset that lags most behind its share,
    ``weight * max(i, 1) - taken``; the first of several equals. So every prefix of the
    blend holds each dataset in proportion, to within one sample.

    Arrays: ``sample`` [size], its number within its dataset (uint32, from 2**32 samples on
    int64), and ``dataset`` [size] (int16).
    """

    weights: tuple[float, ...]  # shares, taken as they are: the last bit of a sum decides ties
    size: int
    kind = "blend"

    def __post_init__(self) -> None:
        if len(self.weights) > _MOST_DATASETS:
            raise DataError(f"{len(self.weights)} corpora cannot be blended; at most {_MOST_DATASETS} are possible")

    @property
    def cost(self) -> int:
        """Rough work."""
        return self.size * (1 + len(self.weights) // 8)

    def description(self) -> dict[str, Any]:
        """Return all that decides the arrays."""
        return {"weights": [weight.hex() for weight in self.weights], "size": self.size}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(spec.nbytes for spec in self._specs())

    def make(self) -> Making:
        """Begin to make the arrays."""
        return Making(self._specs(), self._content())

    def _specs(self) -> tuple[Spec, Spec]:
        return Spec("sample", self._dtype, (self.size,)), Spec("dataset", np.dtype(np.int16), (self.size,))

    def _content(self) -> Iterator[npt.NDArray[Any]]:
        datasets = np.empty(self.size, np.int16)
        done = 0
        for block in self._blocks():
            datasets[done : done + len(block.datasets)] = block.datasets
            done += len(block.datasets)
            yield block.samples
        yield datasets

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint32 if self.size < 2**32 else np.int64)

    def _blocks(self) -> Iterator[Block]:
        weights = np.array(self.weights)
        if len(weights) == 1:
            yield Block(np.zeros(self.size, np.int16), np.arange(self.size, dtype=self._dtype))
        elif self.size <= _SHORT:
            picks, taken, _ = walk_plainly(weights, 0, np.zeros(len(weights)), self.size)
            yield Block(np.array(picks, np.int16), np.array(taken, self._dtype))
        else:
            yield from blend_blocks(weights, self.size, self._dtype)


def blend_index(weights: Sequence[float], size: int) -> BlendIndex:
    """Return where each of ``size`` samples of a blend comes from; see :class:`BlendRecipe`."""
    arrays = collect(BlendRecipe(tuple(normalised(weights)), size))
    return arrays["dataset"], arrays["sample"].astype(np.int64)


def blend_all(sizes: Sequence[int]) -> BlendIndex:
    """Return a blend in proportion to ``sizes`` that takes every sample of every dataset once.

    The rule of :class:`BlendRecipe`, among the datasets that have samples left. One step
    after the other: for thousands of samples, not for millions.
    """
    shares, left = normalised(sizes), list(sizes)
    out = np.empty(sum(sizes), np.int16)
    for i in range(len(out)):
        lags = [
            share * (i or 1) - (size - rest) if rest else -math.inf
            for share, size, rest in zip(shares, sizes, left, strict=True)
        ]
        best = out[i] = lags.index(max(lags))
        left[best] -= 1
    samples = np.empty(len(out), np.int64)
    for dataset, size in enumerate(sizes):
        samples[out == dataset] = np.arange(size)
    return out, samples
