"""Whether the index of a token file is sound: every number of it, in blocks, so memory stays small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megads.data.indexed.base import TokenFile
from megads.data.indexed.tnt import TntDataset
from megads.errors import DataError


def require_sound(dataset: TokenFile) -> None:
    """Refuse a file whose index is not sound.

    Raises:
        DataError: the first of :func:`index_problems`.
    """
    for problem in index_problems(dataset):
        raise DataError(f"{problem}; write the files again")


def index_problems(dataset: TokenFile) -> Iterator[str]:
    """Yield one line for each rule of the format that the index breaks, with the first place where it does.

    The rules: sequences have 0 or more tokens, lie back to back and fill the .bin file; the document
    index never decreases, and runs from 0 to the number of sequences (that, and the sizes of both
    files, was seen when the dataset was opened).

    Raises:
        DataError: a file was cut short meanwhile.
    """
    yield from _length_problems(dataset)
    yield from _document_problems(dataset)
    if isinstance(dataset, TntDataset):
        yield from _dimension_problems(dataset)


def _length_problems(dataset: TokenFile) -> Iterator[str]:
    name, scale = dataset.index_file.path, dataset.dtype.itemsize // dataset.start_unit
    most = dataset.bin_file.size // dataset.dtype.itemsize
    begin = total = 0
    for block, starts in zip(dataset.length_row.blocks(), dataset.start_row.blocks(), strict=False):
        # Lengths that no file has are told first: their sums would not fit int64.
        wrong = np.flatnonzero((block < 0) | (block > most - total))
        if len(wrong):
            at = int(wrong[0])
            yield f"{name}: sequence {begin + at} has {block[at]} tokens, the .bin file has {most} in all"
            return
        ends = np.cumsum(block, dtype=np.int64) + total
        expected = np.concatenate((np.array([total]), ends[:-1])) * scale
        wrong = np.flatnonzero(starts[: len(block)] != expected)
        if len(wrong):
            at = int(wrong[0])
            yield f"{name}: sequence {begin + at} starts at {starts[at]}, but the one before it ends at {expected[at]}"
            return
        begin, total = begin + len(block), int(ends[-1])
    end = dataset.start_row[len(dataset)] if isinstance(dataset, TntDataset) else total
    if not total == most == end:
        yield f"{name}: its sequences have {total} tokens and end at {end}, the .bin file has {most}"


def _document_problems(dataset: TokenFile) -> Iterator[str]:
    begin = 0
    for block in dataset.document_row.blocks(overlap=1):
        # Compared, not subtracted: a difference may not fit its type.
        wrong = np.flatnonzero((block[1:] < block[:-1]) | (block[1:] > len(dataset)))
        if len(wrong):
            at = int(wrong[0])
            yield (
                f"{dataset.index_file.path}: document {begin + at} runs from sequence {block[at]} to {block[at + 1]}, "
                f"expected a start that is not lower and at most {len(dataset)}"
            )
            return
        begin += len(block) - 1


def _dimension_problems(dataset: TntDataset) -> Iterator[str]:
    begin = 0
    for block in dataset.dim_row.blocks():
        wrong = np.flatnonzero(block != np.arange(begin, begin + len(block)))
        if len(wrong):
            at = int(wrong[0])
            yield f"{dataset.index_file.path}: sequence {begin + at} has its size at {block[at]}, expected {begin + at}"
            return
        begin += len(block)
