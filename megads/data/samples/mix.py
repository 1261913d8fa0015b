"""Mix token files into one row of samples: concatenated within a corpus, blended between corpora."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.file_list import Shard
from megads.data.samples.blend import blend_index, normalised
from megads.data.samples.gpt import GPTSamples
from megads.errors import DataError

SURPLUS = 1.005
"""Megatron asks each file for half a percent more than its share, so that rounding never runs dry."""


def requested_samples(weights: Sequence[float], size: int) -> list[int]:
    """Return how many samples each file must have so that ``size`` can be drawn by ``weights``."""
    return [math.ceil(size * weight * SURPLUS) for weight in normalised(weights)]


class Mix:
    """``size`` samples drawn from several files by weight.

    The files of a corpus are concatenated, each with its requested samples in its own
    order, and the corpus is shuffled once. Corpora are blended by the sums of their files'
    weights. That is the order of ALCF's Megatron-DeepSpeed with ``--shuffle-sample-in-corpus``.

    Args:
        shards: weight and corpus of each file; weights are positive.
        files: samples of each file, at least ``requested_samples(weights, size)``.
        size: samples in the mix.
        seed: of the shuffle of each corpus.
        vocab_size: a sample with an id outside of ``0..vocab_size-1`` is refused; 0: not looked at.
    """

    def __init__(
        self, shards: Sequence[Shard], files: Sequence[GPTSamples], size: int, seed: int, *, vocab_size: int = 0
    ):
        self._size = size
        self._vocab_size = vocab_size
        requests = requested_samples([shard.weight for shard in shards], size)
        members: dict[str, list[int]] = {}
        for number, shard in enumerate(shards):
            members.setdefault(shard.corpus, []).append(number)
        self._corpora = [
            _Corpus([files[i] for i in numbers], [requests[i] for i in numbers], seed) for numbers in members.values()
        ]
        self._blend = None
        if len(self._corpora) > 1:
            weights = [sum(shards[i].weight for i in numbers) for numbers in members.values()]
            self._blend = blend_index(weights, size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [seq_length + 1].

        Raises:
            DataError: the sample holds an id that the model does not know.
        """
        if not 0 <= i < self._size:
            raise IndexError(f"sample {i} of {self._size}")
        if self._blend is None:
            file, number = self._corpora[0].find(i)
        else:
            dataset_index, sample_index = self._blend
            file, number = self._corpora[int(dataset_index[i])].find(int(sample_index[i]))
        tokens = file[number]
        if self._vocab_size and not (tokens.min() >= 0 and tokens.max() < self._vocab_size):
            wrong = tokens[(tokens < 0) | (tokens >= self._vocab_size)][0]
            raise DataError(
                f"{file.dataset.prefix}: holds token {wrong}, but the model knows {self._vocab_size} tokens; "
                "use the tokenizer the file was made with, and its VOCAB_SIZE"
            )
        return tokens


class _Corpus:
    """The first ``counts[f]`` samples of each file ``f``, laid end to end and shuffled once."""

    def __init__(self, files: Sequence[GPTSamples], counts: Sequence[int], seed: int):
        self._files = files
        self._starts = [0, *itertools.accumulate(counts)]
        size = self._starts.pop()
        self._order: npt.NDArray[Any] = np.arange(size, dtype=np.uint32 if size < 2**32 else np.int64)
        np.random.RandomState(seed).shuffle(self._order)

    def find(self, i: int) -> tuple[GPTSamples, int]:
        """Return the file that holds sample ``i`` of the corpus, and its number there."""
        where = int(self._order[i])
        file = bisect.bisect_right(self._starts, where) - 1
        return self._files[file], where - self._starts[file]
