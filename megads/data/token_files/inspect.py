"""What is in a token file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.record import Record, read_record
from megads.data.formats.token_file import TokenFile, open_dataset
from megads.data.token_files.scan import require_valid

_PERCENTILES = (1, 10, 50, 90, 99)
_LONGEST = 1 << 22  # tokens; longer documents are counted as this long in percentiles
_DOCUMENTS = 1 << 16  # at a time: each may have many sequences
_FIRST = 16  # tokens shown


@dataclass(frozen=True)
class Lengths:
    """How many tokens documents, or sequences, have."""

    count: int
    empty: int
    shortest: int
    longest: int
    mean: float
    percentiles: dict[int, int]  # the length that so many per cent do not exceed
    histogram: tuple[tuple[int, int], ...]  # (power of two, how many are at least so long and less than twice)


@dataclass(frozen=True)
class Info:
    """What is in a token file, and how it was made."""

    prefix: str
    impl: str
    dtype: str
    bin_bytes: int
    index_bytes: int
    tokens: int
    documents: Lengths
    sequences: Lengths
    multimodal: bool
    record: Record | None
    first_tokens: tuple[int, ...]


def info(prefix: str) -> Info:
    """Return what is in a token file; reads all of its index, and of its tokens the first few.

    Raises:
        DataError: the files are missing or broken.
    """
    dataset = open_dataset(prefix, allow_empty=True)
    require_valid(dataset)
    modes = getattr(dataset, "mode_row", None)
    first = dataset.bin_file.array(dataset.dtype, min(_FIRST, dataset.num_tokens), 0)
    return Info(
        prefix=dataset.prefix,
        impl=dataset.impl,
        dtype=str(dataset.dtype),
        bin_bytes=dataset.bin_file.size,
        index_bytes=dataset.index_file.size,
        tokens=dataset.num_tokens,
        documents=_lengths(_documents(dataset)),
        sequences=_lengths(dataset.length_row.blocks()),
        multimodal=modes is not None,
        record=read_record(prefix),
        first_tokens=tuple(first.tolist()),
    )


def _documents(dataset: TokenFile) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the tokens of each document of a valid file."""
    sequences, scale = len(dataset), dataset.dtype.itemsize // dataset.start_unit
    for block in dataset.document_row.blocks(overlap=1, size=_DOCUMENTS):
        low, high = int(block[0]), int(block[-1])
        starts = dataset.start_row.read(low, min(high + 1, sequences)) // scale
        if high == sequences:
            starts = np.append(starts, dataset.num_tokens)
        yield np.diff(starts[block - low])


def _lengths(source: Iterator[npt.NDArray[Any]]) -> Lengths:
    counts: npt.NDArray[np.int64] = np.zeros(1, np.int64)
    total, longest, shortest = 0, 0, None
    for block in source:
        total += int(block.sum(dtype=np.int64))
        longest = max(longest, int(block.max()))
        shortest = int(block.min()) if shortest is None else min(shortest, int(block.min()))
        found = np.bincount(np.minimum(block, _LONGEST))
        if len(found) > len(counts):
            counts = np.append(counts, np.zeros(len(found) - len(counts), np.int64))
        counts[: len(found)] += found
    count = int(counts.sum())
    ranks = np.searchsorted(np.cumsum(counts), [max(1, -(-count * each // 100)) for each in _PERCENTILES])
    return Lengths(
        count=count,
        empty=int(counts[0]),
        shortest=shortest or 0,
        longest=longest,
        mean=total / max(count, 1),
        percentiles=dict(zip(_PERCENTILES, ranks.tolist() if count else [0] * len(ranks), strict=True)),
        histogram=tuple(_histogram(counts)),
    )


def _histogram(counts: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    low = 1
    while low < len(counts):
        yield low, int(counts[low : 2 * low].sum())
        low *= 2
