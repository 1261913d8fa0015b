"""Which dataset each sample of a blend comes from; Megatron-core's rule, number by number, many stretches at a time.

Each pick depends on all picks before it, so the plain way is one step after the other. But
the state at sample ``i`` is only how many samples each dataset gave so far, and that is
near ``weight * i`` wherever one starts: a guess a few steps early meets the true state
almost always. So a block is cut into stretches, every stretch walks from a guessed
state, all of them in lockstep (a lane each), and then the end of each is compared with the
state its successor started from. Where they differ, the successor walks again. When all
are equal the result is the plain one, by induction from the first stretch, which starts from
the known state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.samples.recipe import ArrayStream, Recipe, Spec
from megads.errors import DataError

_MOST_DATASETS = 2**15 - 1  # int16
_SHORT = 1 << 12  # so few samples are faster one by one
_LANES = 8192
_STEPS = 512  # of a lane in a block, at most
_FEWEST_STEPS = 256
_EARLY = 32  # steps between the guess and the stretch
_ROUNDS = 12  # then what is still wrong is walked one by one
_PROBES = 16  # stretches that tell whether all are wrong alike
_FEW_DATASETS = 40  # up to here a Python loop beats numpy's cost of a call
_IN_CACHE = 1 << 17  # numbers of a state of all lanes

Counts = npt.NDArray[np.float64]


def normalised(weights: Sequence[float]) -> list[float]:
    """Return ``weights`` scaled to sum 1."""
    total = sum(weights)
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not total > 0:
        raise DataError(f"weights {', '.join(map(str, weights))}: must be 0 or larger, and one of them positive")
    return [weight / total for weight in weights]


def number_dtype(size: int) -> np.dtype[Any]:
    """Return the type for numbers below ``size``."""
    return np.dtype(np.uint32 if size < 2**32 else np.int64)


@dataclass(frozen=True)
class BlendRecipe(Recipe):
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

    def make(self) -> ArrayStream:
        """Begin to make the arrays."""
        return ArrayStream(self._specs(), self._content())

    def _specs(self) -> tuple[Spec, Spec]:
        return Spec("sample", number_dtype(self.size), (self.size,)), Spec("dataset", np.dtype(np.int16), (self.size,))

    def _content(self) -> Iterator[npt.NDArray[Any]]:
        datasets = np.empty(self.size, np.int16)
        done = 0
        for block in self._blocks():
            datasets[done : done + len(block.datasets)] = block.datasets
            done += len(block.datasets)
            yield block.samples
        yield datasets

    def _blocks(self) -> Iterator[Block]:
        weights = np.array(self.weights)
        if len(weights) == 1:
            yield Block(np.zeros(self.size, np.int16), np.arange(self.size, dtype=number_dtype(self.size)))
        elif self.size <= _SHORT:
            picks, taken, _ = walk_plainly(weights, 0, np.zeros(len(weights)), self.size)
            yield Block(np.array(picks, np.int16), np.array(taken, number_dtype(self.size)))
        else:
            yield from blend_blocks(weights, self.size, number_dtype(self.size))


@dataclass(frozen=True)
class Block:
    """Consecutive samples of a blend."""

    datasets: npt.NDArray[np.int16]
    samples: npt.NDArray[Any]  # number within the dataset; uint32 or int64


def blend_blocks(weights: npt.NDArray[np.float64], size: int, dtype: npt.DTypeLike) -> Iterator[Block]:
    """Yield the ``size`` samples of a blend in order; there are at least two ``weights``, and they sum to 1."""
    many = len(weights)
    steps = min(_STEPS, max(_FEWEST_STEPS, size // _LANES))
    lanes = max(64, min(_LANES, _IN_CACHE * 4 // many))
    state: npt.NDArray[np.float64] = np.zeros(many)
    for first in range(0, size, lanes * steps):
        count = min(lanes * steps, size - first)
        walk = _Walk(weights, first, steps, -(-count // steps), dtype)
        state = walk.run(state)
        yield Block(walk.picks.T.reshape(-1)[:count], walk.taken.T.reshape(-1)[:count])


class _Walk:
    """One block: ``lanes`` stretches of ``steps`` samples from sample ``first`` on."""

    def __init__(self, weights: npt.NDArray[np.float64], first: int, steps: int, lanes: int, dtype: npt.DTypeLike):
        self.weights = weights
        self.steps = steps
        self.at = first + steps * np.arange(lanes, dtype=np.int64)
        self.picks = np.empty((steps, lanes), np.int16)
        self.taken = np.empty((steps, lanes), dtype)

    def run(self, state: Counts) -> Counts:
        """Walk from the counts ``state`` at the first sample; return those behind the last stretch."""
        starts = self._guess()
        starts[:, 0] = state
        ends = starts.copy()
        _step(self.weights, self.at, ends, self.steps, self.picks, self.taken)
        for attempt in range(_ROUNDS):
            wrong = _disagreeing(starts, ends)
            if not len(wrong):
                break
            shift = ends[:, wrong[0] - 1] - starts[:, wrong[0]]
            if attempt % 2 and self._agree_shifted(int(wrong[0]), shift, starts):
                wrong = np.arange(wrong[0], len(self.at))
                starts[:, wrong] += shift[:, None]
            else:
                starts[:, wrong] = ends[:, wrong - 1]
            self._again(wrong, starts, ends)
        self._one_by_one(starts, ends)
        last: Counts = ends[:, -1].copy()
        return last

    def _guess(self) -> Counts:
        """Return the likely counts at the start of every stretch, [datasets, lanes]."""
        early = np.minimum(self.at, _EARLY)
        share = np.multiply.outer(self.weights, (self.at - early).astype(np.float64))
        counts: Counts = np.floor(share)
        # The samples that are missing come from those that lag most.
        rank = np.empty(counts.shape, np.int64)
        order = np.argsort(counts - share, axis=0, kind="stable")
        np.put_along_axis(rank, order, np.arange(len(self.weights))[:, None], axis=0)
        counts += rank < (self.at - early) - counts.sum(axis=0)
        if len(self.at) > 1:
            later = np.ascontiguousarray(counts[:, 1:])
            _step(self.weights, self.at[1:] - _EARLY, later, _EARLY)
            counts[:, 1:] = later
        return counts

    def _again(self, which: npt.NDArray[np.int64], starts: Counts, ends: Counts) -> None:
        """Walk some of the stretches from their starts."""
        counts = np.ascontiguousarray(starts[:, which])
        shape = (self.steps, len(which))
        picks, taken = np.empty(shape, np.int16), np.empty(shape, self.taken.dtype)
        _step(self.weights, self.at[which], counts, self.steps, picks, taken)
        self.picks[:, which], self.taken[:, which], ends[:, which] = picks, taken, counts

    def _agree_shifted(self, first: int, shift: Counts, starts: Counts) -> bool:
        """Return whether stretches from ``first`` on would agree with each other if all began ``shift`` further.

        Then they are wrong for one reason: a history that the guess knows nothing of, such as
        a tiny weight that had its turn at the start.
        """
        some = np.unique(np.linspace(first, len(self.at) - 2, _PROBES).astype(np.int64))
        if first > len(self.at) - 2:
            return False
        counts = np.ascontiguousarray(starts[:, some] + shift[:, None])
        _step(self.weights, self.at[some], counts, self.steps)
        return bool((counts == starts[:, some + 1] + shift[:, None]).all(axis=0).mean() > 0.5)

    def _one_by_one(self, starts: Counts, ends: Counts) -> None:
        """Walk every stretch again whose start is not the end of the one before."""
        for wrong in _disagreeing(starts, ends).tolist():
            lane = wrong
            while lane < len(self.at) and not np.array_equal(starts[:, lane], ends[:, lane - 1]):
                starts[:, lane] = ends[:, lane - 1]
                picks, taken, end = walk_plainly(self.weights, int(self.at[lane]), starts[:, lane], self.steps)
                self.picks[:, lane], self.taken[:, lane], ends[:, lane] = picks, taken, end
                lane += 1


def _disagreeing(starts: Counts, ends: Counts) -> npt.NDArray[np.int64]:
    """Return the stretches whose start is not the end of the one before."""
    return np.flatnonzero((starts[:, 1:] != ends[:, :-1]).any(axis=0)) + 1


def _step(
    weights: npt.NDArray[np.float64],
    at: npt.NDArray[np.int64],
    counts: Counts,
    steps: int,
    picks: npt.NDArray[np.int16] | None = None,
    taken: npt.NDArray[Any] | None = None,
) -> None:
    """Take ``steps`` steps in every lane; ``counts`` [datasets, lanes], contiguous, is changed in place.

    Row ``t`` of ``picks`` gets the dataset of each lane's step ``t``, that of ``taken`` its number there.
    """
    many, lanes = counts.shape
    small = np.dtype(np.uint8 if many < 2**8 else np.uint16)
    # The first of several equals has the largest number here.
    number = (many - np.arange(many)).astype(small)[:, None]
    column, flat = weights[:, None], counts.reshape(-1)
    lag, most = np.empty((many, lanes)), np.empty(lanes)
    equal, coded, pick = np.empty((many, lanes), bool), np.empty((many, lanes), small), np.empty(lanes, small)
    where, last = np.empty(lanes, np.intp), many * lanes + np.arange(lanes)
    now = np.maximum(at, 1).astype(np.float64)
    for t in range(steps):
        np.multiply(column, now, out=lag)
        np.subtract(lag, counts, out=lag)
        np.maximum.reduce(lag, axis=0, out=most)
        np.equal(lag, most, out=equal)
        np.multiply(equal.view(np.uint8), number, out=coded)
        np.maximum.reduce(coded, axis=0, out=pick)
        np.multiply(pick, -lanes, out=where, dtype=np.intp)
        where += last
        given = flat[where]
        if picks is not None and taken is not None:
            np.subtract(many, pick, out=picks[t], casting="unsafe")
            taken[t] = given
        flat[where] = given + 1
        now = (at + (t + 1)).astype(np.float64)


def walk_plainly(
    weights: npt.NDArray[np.float64], first: int, counts: Counts, steps: int
) -> tuple[list[int], list[int], list[float]]:
    """Return datasets, numbers within them, and the counts behind the last of ``steps`` samples from ``first`` on."""
    if len(weights) > _FEW_DATASETS:
        return _walk_many(weights, first, counts, steps)
    shares, state = weights.tolist(), counts.tolist()
    picks, taken = [], []
    for i in range(first, first + steps):
        step = float(i or 1)
        lags = [share * step - count for share, count in zip(shares, state)]  # noqa: B905
        best = lags.index(max(lags))
        picks.append(best)
        taken.append(int(state[best]))
        state[best] += 1.0
    return picks, taken, state


def _walk_many(
    weights: npt.NDArray[np.float64], first: int, counts: Counts, steps: int
) -> tuple[list[int], list[int], list[float]]:
    state, lags = counts.copy(), np.empty(len(weights))
    picks, taken = [], []
    for i in range(first, first + steps):
        np.multiply(weights, float(i or 1), out=lags)
        lags -= state
        best = int(lags.argmax())
        picks.append(best)
        taken.append(int(state[best]))
        state[best] += 1.0
    return picks, taken, state.tolist()
