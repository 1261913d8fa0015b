"""Cut a token file into GPT samples, in Megatron-core's order.

Three arrays decide it: ``document_index`` (the documents of all epochs, shuffled),
``sample_index`` (where each sample starts in that row of documents) and ``shuffle_index``
(the order in which samples are handed out). Neighbouring samples share one token: the last
label of one is the first input of the next. What is called a document here is a sequence of
the file: in a file that was split into sentences, a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.token_file import TokenFile, open_dataset
from megads.data.samples.recipe import ArrayStream, Columns, Recipe, Spec
from megads.errors import DataError

LAST_EPOCH_CUTOFF = 0.80
"""Below this share of an epoch the last epoch is shuffled on its own (Megatron-core; 0.95 in some forks)."""

_CHUNK = 1 << 20  # documents, or samples, that are placed at once; bounds the memory of temporaries
_INT32_MAX = 2**31 - 1
_SAMPLE_BYTES = 12  # where it starts, and its place in the order


@dataclass(frozen=True)
class Epochs:
    """How often the documents are read to give the samples asked for."""

    number: int
    samples: int  # in all epochs
    whole_samples: int  # in all epochs but the last, when little of that is needed and it is shuffled apart


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
    together = epochs.number - (epochs.whole_samples < epochs.samples)
    return _shuffled(np.tile(documents, epochs.number), together * len(documents), rng)


def build_sample_index(
    lengths: npt.NDArray[Any], document_index: npt.NDArray[np.int32], seq_length: int, first: int = 0
) -> Iterator[npt.NDArray[Any]]:
    """Yield where samples start, in blocks of [samples, 2]: (position in ``document_index``, token offset).

    Sample ``j`` starts at token ``j * seq_length`` of the documents laid end to end, and ends
    with the token at which sample ``j + 1`` starts; so there is one row more than samples.
    int32, or int64 when the position does not fit.

    Args:
        lengths: tokens of each document from number ``first`` on.
        document_index: the documents, in their order.
        seq_length: tokens from one start to the next.
        first: number of the document that ``lengths`` begins with.
    """
    kind = _kind(len(document_index))
    before, row = 0, 0
    for begin in range(0, len(document_index), _CHUNK):
        part = document_index[begin : begin + _CHUNK]
        ends = np.cumsum(lengths[part - first if first else part], dtype=np.int64)
        ends += before
        # The rows whose token comes before the end of each document; the last token starts no row.
        through = (ends + (seq_length - 1)) // seq_length
        if begin + _CHUNK >= len(document_index):
            np.minimum(through, (ends[-1] - 1) // seq_length + 1, out=through)
        for start in range(row, int(through[-1]), _CHUNK):
            yield _rows(
                range(start, min(start + _CHUNK, int(through[-1]))), seq_length, begin, before, ends, through, kind
            )
        before, row = int(ends[-1]), int(through[-1])


def _rows(
    rows: range,
    seq_length: int,
    first: int,
    before: int,
    ends: npt.NDArray[np.int64],
    through: npt.NDArray[np.int64],
    kind: np.dtype[Any],
) -> npt.NDArray[Any]:
    """Return some rows of the sample index; all of them start within documents ``first`` .. ``first + len(ends)``."""
    start, last = np.searchsorted(through, [rows.start, rows.stop - 1], side="right").tolist()
    some = slice(start, last + 1)
    counts = np.diff(np.minimum(through[some], rows.stop), prepend=rows.start)
    starts = np.concatenate(([ends[some.start - 1] if some.start else before], ends[some][:-1]))
    index = np.empty((len(rows), 2), kind)
    index[:, 0] = np.repeat(np.arange(first + some.start, first + some.stop), counts)
    index[:, 1] = np.arange(rows.start, rows.stop) * seq_length - np.repeat(starts, counts)
    if rows.start == 0:
        # Upstream starts at the first document even if that is empty.
        index[0] = 0
    return index


def build_shuffle_index(epochs: Epochs, rng: np.random.RandomState) -> npt.NDArray[Any]:
    """Return the order of the samples, [samples] of uint32 (int64 from 2**32 - 2 samples on)."""
    return _shuffled(shuffle_order(epochs.samples), epochs.whole_samples, rng)


def shuffle_order(samples: int) -> npt.NDArray[Any]:
    """Return a shuffle index before it is shuffled."""
    return np.arange(samples, dtype=_order_kind(samples))


def _shuffled(index: npt.NDArray[Any], border: int, rng: np.random.RandomState) -> npt.NDArray[Any]:
    """Shuffle what is before the border, then, apart, what is behind it."""
    rng.shuffle(index[:border])
    rng.shuffle(index[border:])
    return index


def _kind(documents: int) -> np.dtype[Any]:
    return np.dtype(np.int32 if documents <= _INT32_MAX else np.int64)


def _order_kind(samples: int) -> np.dtype[Any]:
    return np.dtype(np.uint32 if samples < 2**32 - 2 else np.int64)


@dataclass(frozen=True)
class Stamp:
    """What distinguishes two states of a token file, without reading it."""

    index_bytes: int
    index_time_ns: int
    token_bytes: int
    token_time_ns: int

    @staticmethod
    def of(prefix: str) -> Stamp:
        """Return the stamp of ``<prefix>.idx`` and ``<prefix>.bin``.

        Raises:
            DataError: one of them is missing.
        """
        found = []
        for suffix in (".idx", ".bin"):
            try:
                status = os.stat(prefix + suffix)
            except OSError as error:
                raise DataError(f"{prefix}{suffix}: {os.strerror(error.errno or 0).lower()}") from None
            found += [status.st_size, status.st_mtime_ns]
        return Stamp(*found)

    def check(self, prefix: str) -> None:
        """Refuse a file of other sizes than those that rank 0 saw.

        Raises:
            DataError: as said.
        """
        here = Stamp.of(prefix)
        if (here.index_bytes, here.token_bytes) != (self.index_bytes, self.token_bytes):
            raise DataError(
                f"{prefix}: has {here.index_bytes} and {here.token_bytes} bytes (.idx and .bin), rank 0 saw "
                f"{self.index_bytes} and {self.token_bytes}; the file changed, or this host has another copy"
            )


@dataclass(frozen=True)
class GPTRecipe(Recipe):
    """The samples of some documents of a token file.

    Arrays: ``document_index``, ``sample_index`` and ``shuffle_index``; see this module.
    """

    prefix: str  # absolute, without suffix
    stamp: Stamp
    first: int  # document
    last: int  # behind the last document
    seq_length: int  # tokens the model sees; a sample has one more, for the labels
    num_samples: int | None  # at least; the documents are repeated as often as needed. None: one epoch
    seed: int
    cutoff: float = LAST_EPOCH_CUTOFF
    nbytes: int = 0  # of the arrays, nearly
    kind = "gpt"

    @property
    def cost(self) -> int:
        """Rough work, in samples."""
        return self.nbytes // _SAMPLE_BYTES

    def make(self) -> ArrayStream:
        """Begin to make the arrays.

        Raises:
            DataError: the documents hold no tokens, or the file is broken or not the one of the stamp.
        """
        lengths = self._read_lengths()
        tokens = int(lengths.sum(dtype=np.int64))
        if tokens <= 0 or int(lengths.min()) < 0:
            raise DataError(
                f"{self.prefix}: documents {self.first}..{self.last} hold {tokens} tokens "
                f"(shortest {min(lengths, default=0)}), expected some; choose a larger share or other files"
            )
        epochs = count_epochs(tokens, self.seq_length, self.num_samples, self.cutoff)
        documents = epochs.number * len(lengths)
        specs = (
            Spec("document_index", np.dtype(np.int32), (documents,)),
            Spec("sample_index", _kind(documents), (epochs.samples + 1, 2)),
            Spec("shuffle_index", _order_kind(epochs.samples), (epochs.samples,)),
        )
        return ArrayStream(specs, self._blocks(lengths, epochs))

    def _read_lengths(self) -> npt.NDArray[np.int32]:
        """Return the tokens of each document, int32 [last - first]."""
        dataset = open_dataset(self.prefix)
        self.stamp.check(self.prefix)
        return dataset.length_row.read(self.first, self.last)

    def _blocks(self, lengths: npt.NDArray[np.int32], epochs: Epochs) -> Iterator[npt.NDArray[Any]]:
        rng = np.random.RandomState(self.seed)
        documents = build_document_index(np.arange(self.first, self.last, dtype=np.int32), epochs, rng)
        yield documents
        yield from build_sample_index(lengths, documents, self.seq_length, self.first)
        del documents
        yield build_shuffle_index(epochs, rng)


class GPTSamples:
    """Samples of ``seq_length + 1`` tokens; ``columns`` are those of a :class:`GPTRecipe` of the file ``dataset``."""

    def __init__(self, dataset: TokenFile, columns: Columns, seq_length: int):
        self.dataset = dataset
        self.seq_length = seq_length
        self._documents = columns["document_index"]
        self._starts = columns["sample_index"]
        self._order = columns["shuffle_index"]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [seq_length + 1]."""
        first, offset, last, end = self._span(i)
        out = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for position, document in enumerate(self._documents.read(first, last + 1).tolist(), start=first):
            start = offset if position == first else 0
            length = end + 1 - start if position == last else None
            tokens = self.dataset.get(document, start, length)
            out[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
        return out

    def documents(self, i: int) -> npt.NDArray[np.int32]:
        """Return the documents that sample ``i`` has tokens of, in their order; one may be there twice."""
        first, _, last, _ = self._span(i)
        return self._documents.read(first, last + 1)

    def _span(self, i: int) -> tuple[int, int, int, int]:
        """Return where sample ``i`` begins and ends: places in the row of documents, and tokens there."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        j = self._order[i]
        first, offset, last, end = self._starts.read(2 * j, 2 * j + 4).tolist()
        return first, offset, last, end
