"""An order that is the same for every longer plan: what a run has read does not depend on how long it will be.

Megatron's order is made for a number of samples: the documents of all epochs are shuffled together, and corpora across
their files. Here each epoch of a file is shuffled on its own, and files are blended by weight, sample by
sample, corpora as well. So a plan of more samples begins with the samples of a shorter one, in
its order. The first epoch of a file has Megatron-core's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.samples.gpt import Epochs, GPTRecipe, build_sample_index, shuffle_order


class EpochwiseRecipe(GPTRecipe):
    """The samples of some documents of a token file, each epoch in an order of its own.

    A sample that reaches into the next epoch belongs to that one.
    """

    kind = "gpt-epochwise"

    def _blocks(self, lengths: npt.NDArray[np.int32], epochs: Epochs) -> Iterator[npt.NDArray[Any]]:
        generators = [_generator(self.seed, epoch) for epoch in range(epochs.number)]
        whole = np.arange(self.first, self.last, dtype=np.int32)
        documents = np.tile(whole, epochs.number)
        for epoch, rng in enumerate(generators):
            rng.shuffle(documents[epoch * len(whole) : (epoch + 1) * len(whole)])
        yield documents
        yield from build_sample_index(lengths, documents, self.seq_length, self.first)
        del documents
        order, tokens, start = shuffle_order(epochs.samples), int(lengths.sum(dtype=np.int64)), 0
        for epoch, rng in enumerate(generators, start=1):
            end = (epoch * tokens - 1) // self.seq_length
            rng.shuffle(order[start:end])
            start = end
        yield order


def _generator(seed: int, epoch: int) -> np.random.RandomState:
    """Return what shuffles an epoch, counted from 0; the first one as Megatron-core."""
    return np.random.RandomState([seed, epoch] if epoch else seed)


def most_taken(share: float, size: int) -> int:
    """Return how many samples at most a blend of ``size`` takes of a dataset with this ``share``.

    The dataset that lags most is taken, so none is ever more than one sample ahead of its share.
    """
    return min(size, math.floor(size * share) + 2)
