"""Cut a token file into GPT samples, in Megatron-core's order.

Three arrays decide it: ``document_index`` (the documents of all epochs, shuffled),
``sample_index`` (where each sample starts in that row of documents) and ``shuffle_index``
(the order in which samples are handed out). Neighbouring samples share one token: the last
label of one is the first input of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.indexed.mmap import IndexedDataset
from megads.errors import DataError

LAST_EPOCH_CUTOFF = 0.80
"""Below this share of an epoch the last epoch is shuffled on its own (Megatron-core; 0.95 in some forks)."""

_CHUNK = 1 << 20  # samples whose position is looked up at once; bounds the memory of temporaries
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Epochs:
    """How often the documents are read to give the samples asked for."""

    number: int
    samples: int  # in all epochs
    whole_samples: int  # in all epochs but the last, when that is shuffled on its own, else ``samples``

    @property
    def last_is_separate(self) -> bool:
        """Whether the last epoch is shuffled on its own, because little of it is needed."""
        return self.whole_samples < self.samples


def count_epochs(tokens: int, seq_length: int, num_samples: int | None, cutoff: float = LAST_EPOCH_CUTOFF) -> Epochs:
    """Return the epochs of ``tokens`` tokens that hold ``num_samples`` samples; None asks for one epoch."""
    number = 1 if num_samples is None else max(1, -(-(num_samples * seq_length + 1) // tokens))
    samples = (number * tokens - 1) // seq_length
    if num_samples is None or number == 1:
        return Epochs(number, samples, samples)
    whole = ((number - 1) * tokens - 1) // seq_length
    per_epoch = (tokens - 1) // seq_length
    return Epochs(number, samples, whole if num_samples - whole < int(cutoff * per_epoch) else samples)


def build_document_index(
    documents: npt.NDArray[np.int32], epochs: Epochs, rng: np.random.RandomState
) -> npt.NDArray[np.int32]:
    """Return the documents of every epoch, int32 [epochs * documents]; a separate last epoch comes last."""
    together = epochs.number - 1 if epochs.last_is_separate else epochs.number
    index = np.tile(documents, epochs.number)
    rng.shuffle(index[: together * len(documents)])
    if epochs.last_is_separate:
        rng.shuffle(index[together * len(documents) :])
    return index


def build_sample_index(
    lengths: npt.NDArray[Any], document_index: npt.NDArray[np.int32], seq_length: int
) -> npt.NDArray[Any]:
    """Return where samples start: [samples + 1, 2] of (position in ``document_index``, token offset).

    Sample ``j`` starts at token ``j * seq_length`` of the documents laid end to end, and ends
    with the token at which sample ``j + 1`` starts. int32, or int64 when that does not fit.
    """
    ends = np.cumsum(lengths[document_index], dtype=np.int64)
    rows = (int(ends[-1]) - 1) // seq_length + 1
    index = np.empty((rows, 2), np.int32 if len(document_index) <= _INT32_MAX else np.int64)
    for first in range(0, rows, _CHUNK):
        starts = np.arange(first, min(first + _CHUNK, rows), dtype=np.int64) * seq_length
        position = np.searchsorted(ends, starts, side="right")
        index[first : first + _CHUNK, 0] = position
        index[first : first + _CHUNK, 1] = starts - ends[position] + lengths[document_index[position]]
    # Upstream starts at the first document even if that is empty.
    index[0] = 0
    return index


def build_shuffle_index(epochs: Epochs, rng: np.random.RandomState) -> npt.NDArray[Any]:
    """Return the order of the samples, [samples] of uint32 (int64 from 2**32 - 2 samples on)."""
    index = np.arange(epochs.samples, dtype=np.uint32 if epochs.samples < 2**32 - 2 else np.int64)
    rng.shuffle(index[: epochs.whole_samples])
    if epochs.last_is_separate:
        rng.shuffle(index[epochs.whole_samples :])
    return index


class GPTSamples:
    """Samples of ``seq_length + 1`` tokens from some documents of a token file.

    Args:
        dataset: the token file.
        documents: sequence numbers, e.g. the range that a split gives.
        seq_length: tokens the model sees; a sample has one more, for the labels.
        num_samples: at least this many; the documents are repeated as often as needed. None: one epoch.
        seed: of the order.
        cutoff: see :data:`LAST_EPOCH_CUTOFF`.

    Raises:
        DataError: the documents hold no tokens, or the index has a negative length.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        documents: range,
        seq_length: int,
        num_samples: int | None,
        seed: int,
        *,
        cutoff: float = LAST_EPOCH_CUTOFF,
    ):
        chosen = dataset.lengths[documents.start : documents.stop : documents.step]
        tokens = int(chosen.sum(dtype=np.int64))
        if tokens <= 0 or int(chosen.min()) < 0:
            raise DataError(
                f"{dataset.prefix}: documents {documents.start}..{documents.stop} hold {tokens} tokens "
                f"(shortest {min(chosen, default=0)}), expected some; choose a larger share or other files"
            )
        self.dataset = dataset
        self.seq_length = seq_length
        self.epochs = count_epochs(tokens, seq_length, num_samples, cutoff)
        rng = np.random.RandomState(seed)
        ids = np.arange(documents.start, documents.stop, documents.step, dtype=np.int32)
        self.document_index = build_document_index(ids, self.epochs, rng)
        self.sample_index = build_sample_index(dataset.lengths, self.document_index, seq_length)
        self.shuffle_index = build_shuffle_index(self.epochs, rng)

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [seq_length + 1]."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        j = int(self.shuffle_index[i])
        (first, offset), (last, end) = self.sample_index[j : j + 2].tolist()
        out = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for position in range(first, last + 1):
            start = offset if position == first else 0
            length = end + 1 - start if position == last else None
            tokens = self.dataset.get(int(self.document_index[position]), start, length)
            out[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
        return out
