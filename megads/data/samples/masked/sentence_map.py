"""Which sentences make up each sample of BERT and T5: Megatron's ``build_mapping``, number by number."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import Stamp
from megads.data.samples.recipe import ArrayStream, Recipe, Spec
from megads.errors import DataError

LONG_SENTENCE = 512
"""Tokens; a document of several sentences with a longer one is skipped."""

_DRAWN = 1 << 16  # numbers at once
_SHARE = 64  # of the rows that are left: so few exchanges of a block meet
_UINT32_MAX = 2**32 - 1

# std::mt19937_64
_SIZE, _MIDDLE = 312, 156
_ROUNDS = 64  # of numbers that are tempered together
_MULTIPLIER = 6364136223846793005
_TWIST = np.uint64(0xB5026F5AA96619E9)
_UPPER, _LOWER = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)


def build_map(
    lengths: npt.NDArray[np.integer[Any]],
    documents: npt.NDArray[np.int64],
    *,
    max_length: int,
    min_sentences: int,
    num_samples: int | None,
    seed: int,
    short_share: float = 0.1,
) -> npt.NDArray[Any]:
    """Return the samples, shuffled: [samples, 3] of first sentence, last sentence + 1, and target length in tokens.

    uint32, or uint64 where sentence numbers do not fit. There can be more than ``num_samples``:
    the documents of an epoch are all used.

    Args:
        lengths: [sentences], tokens of each.
        documents: int64 [documents + 1], first sentence of each document, and the end of the last.
        max_length: tokens that a sample may have.
        min_sentences: of a sample: 2 when it is cut in two, else 1.
        num_samples: at least; the documents are repeated as often as needed. None: one epoch.
        seed: of targets and order.
        short_share: of the samples, whose target is drawn from 2 .. max_length.

    Raises:
        DataError: no document gives a sample.
    """
    begins, ends = _usable(lengths, documents, min_sentences)
    if not len(begins):
        raise DataError(
            f"none of {len(documents) - 1} documents has {min_sentences} sentences of at most {LONG_SENTENCE} tokens; "
            "preprocess with --split-sentences"
        )
    sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    walk = _Walk(sums, begins, ends, max_length, min_sentences, _targets(seed, short_share, max_length))
    walk.epoch()
    while num_samples is not None and len(walk.starts) < num_samples:
        walk.epoch()
    rows = np.stack([np.frombuffer(each, each.typecode) for each in (walk.starts, walk.stops, walk.targets)], axis=1)
    del walk
    return rows[_shuffled(len(rows), seed + 1)]


def has_sample(lengths: npt.NDArray[np.integer[Any]], documents: npt.NDArray[np.int64], min_sentences: int) -> bool:
    """Return whether one of some documents gives a sample; arguments as of :func:`build_map`."""
    return bool(_usable(lengths, documents, min_sentences)[0])


def _usable(
    lengths: npt.NDArray[np.integer[Any]], documents: npt.NDArray[np.int64], min_sentences: int
) -> tuple[list[int], list[int]]:
    """Return where the documents that give samples begin and end."""
    counts = np.diff(documents)
    long_before = np.concatenate(([0], np.cumsum(lengths > LONG_SENTENCE)))
    has_long = long_before[documents[1:]] > long_before[documents[:-1]]
    good = (counts >= min_sentences) & ~(has_long & (counts > 1))
    return documents[:-1][good].tolist(), documents[1:][good].tolist()


def _targets(seed: int, short_share: float, max_length: int) -> Iterator[int]:
    """Yield the target length of one sample after the other."""
    # Half is rounded away from zero, as in C.
    ratio = int(1 / short_share + 0.5) if short_share > 0 else 0
    if not ratio:
        yield from itertools.repeat(max_length)
    rng = np.random.RandomState(seed)  # the numbers of std::mt19937
    while True:
        drawn = rng.randint(0, 2**32, _DRAWN, dtype=np.uint32).astype(np.int64)
        yield from np.where(drawn % ratio == 0, 2 + drawn % (max_length - 1), max_length).tolist()


class _Walk:
    """Goes through the documents and cuts them into samples."""

    def __init__(
        self,
        sums: npt.NDArray[np.int64],
        begins: list[int],
        ends: list[int],
        max_length: int,
        min_sentences: int,
        draw: Iterator[int],
    ):
        typecode = "I" if len(sums) - 1 <= _UINT32_MAX else "Q"
        self.starts, self.stops, self.targets = array(typecode), array(typecode), array(typecode)
        self._sums, self._begins, self._ends = array("q", sums.tobytes()), begins, ends
        self._max_length, self._min_sentences = max_length, min_sentences
        self._draw = draw
        # Nearly all targets are the longest: where such samples end, before the document's end is looked at.
        full = np.searchsorted(sums, sums[:-1] + max_length)
        self._full = np.maximum(full, np.arange(len(full)) + min_sentences).tolist()

    def epoch(self) -> None:
        """Cut every document once."""
        add_start, add_stop, add_target = self.starts.append, self.stops.append, self.targets.append
        sums, full, longest, least = self._sums, self._full, self._max_length, self._min_sentences
        draw = self._draw.__next__
        for start, end in zip(self._begins, self._ends, strict=True):
            target = draw()
            while start < end:
                if target == longest:
                    stop = full[start]
                else:
                    stop = max(bisect.bisect_left(sums, sums[start] + target, start, end + 1), start + least)
                # One sentence is never left over.
                if stop > end - 2:
                    stop = end
                add_start(start)
                add_stop(stop)
                add_target(target)
                start = stop
                # Also behind the last sample of a document.
                target = draw()


def _shuffled(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the order of ``count`` rows: from the last to the second, each is exchanged with one not behind it.

    A block of exchanges is done at once, but for those that share a row with another one of the block.
    """
    order, rng = np.arange(count), Mersenne64(seed)
    top = count - 1
    while top > 0:
        some = min(_DRAWN, max(top // _SHARE, 1))
        rows = np.arange(top, top - some, -1)
        targets = (rng.draw(some) % (rows + 1).astype(np.uint64)).astype(np.int64)
        ordered = np.sort(targets)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        # A target in the block is the row of another exchange; so is each target of two.
        shares = (targets > top - some) | np.isin(targets, twice)
        taken = np.zeros(some, np.bool_)
        taken[top - targets[targets > top - some]] = True
        shares |= taken
        alone = ~shares
        order[rows[alone]], order[targets[alone]] = order[targets[alone]], order[rows[alone]]
        for i, j in zip(rows[shares].tolist(), targets[shares].tolist(), strict=True):
            order[i], order[j] = order[j], order[i]
        top -= some
    return order


class Mersenne64:
    """``std::mt19937_64``: many numbers at a time; the seed is 0 .. 2**64 - 1."""

    def __init__(self, seed: int):
        state = [seed]
        for i in range(1, _SIZE):
            state.append((_MULTIPLIER * (state[-1] ^ (state[-1] >> 62)) + i) % 2**64)
        self._state = np.array(state, np.uint64)
        self._ready: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def draw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next ``count`` numbers, uint64."""
        parts: list[npt.NDArray[np.uint64]] = [self._ready]
        missing = count - len(self._ready)
        while missing > 0:
            parts.append(self._more())
            missing -= len(parts[-1])
        drawn = np.concatenate(parts)
        self._ready = drawn[count:]
        return drawn[:count]

    def _more(self) -> npt.NDArray[np.uint64]:
        rows = np.empty((_ROUNDS, _SIZE), np.uint64)
        for row in rows:
            self._turn()
            row[:] = self._state
        x = rows.reshape(-1)
        x ^= (x >> np.uint64(29)) & np.uint64(0x5555555555555555)
        x ^= (x << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
        x ^= (x << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
        x ^= x >> np.uint64(43)
        return x

    def _turn(self) -> None:
        """Make the next state; each half needs only the old numbers and the half before it."""
        state = self._state
        for begin, end, other in ((0, _MIDDLE, _MIDDLE), (_MIDDLE, _SIZE - 1, -_MIDDLE), (_SIZE - 1, _SIZE, -_MIDDLE)):
            follow = state[begin + 1 : end + 1] if end < _SIZE else state[:1]
            mixed = (state[begin:end] & _UPPER) | (follow & _LOWER)
            state[begin:end] = (
                state[begin + other : end + other] ^ (mixed >> np.uint64(1)) ^ ((mixed & np.uint64(1)) * _TWIST)
            )


@dataclass(frozen=True)
class SentenceRecipe(Recipe):
    """The samples of some documents of a file that is split into sentences.

    Array: ``samples``; see :func:`build_map`.
    """

    prefix: str  # absolute, without suffix
    stamp: Stamp
    first: int  # document
    last: int  # behind the last document
    max_length: int
    min_sentences: int
    num_samples: int | None
    seed: int
    short_share: float = 0.1
    nbytes: int = 0  # of the array, nearly
    kind = "sentences"

    def make(self) -> ArrayStream:
        """Make the array.

        Raises:
            DataError: no document gives a sample, or the file is broken.
        """
        dataset = open_dataset(self.prefix)
        self.stamp.check(self.prefix)
        try:
            rows = build_map(
                dataset.length_row.read(0, len(dataset)),
                dataset.document_row.read(self.first, self.last + 1),
                max_length=self.max_length,
                min_sentences=self.min_sentences,
                num_samples=self.num_samples,
                seed=self.seed,
                short_share=self.short_share,
            )
        except DataError as error:
            raise DataError(f"{self.prefix}: {error}") from None
        return ArrayStream((Spec("samples", rows.dtype, rows.shape),), iter([rows]))
