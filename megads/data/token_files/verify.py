"""Whether the index of a token file is valid: every number of it, in blocks, so memory stays small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from megads.data.formats.base import TokenFile
from megads.data.formats.tnt import TntDataset
from megads.errors import DataError

_STRETCH = 4096  # sequences that are looked at together
_ENTRY_BYTES = 20  # of a sequence and its document, about


def require_sound(dataset: TokenFile) -> None:
    """Refuse a file whose index is not valid.

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


def sample_problems(dataset: TokenFile, most_bytes: int) -> Iterator[str]:
    """As :func:`index_problems`, but read about ``most_bytes`` of a large index: stretches that are evenly spaced."""
    if dataset.index_file.size <= max(most_bytes, _STRETCH * _ENTRY_BYTES):
        yield from index_problems(dataset)
        return
    many = max(2, most_bytes // (_STRETCH * _ENTRY_BYTES))
    for first in np.linspace(0, max(0, len(dataset) - _STRETCH), many).astype(np.int64).tolist():
        if problem := _stretch_problem(dataset, first):
            yield problem
            return
    for first in np.linspace(0, max(0, dataset.num_documents - _STRETCH), many).astype(np.int64).tolist():
        if problem := _documents_problem(
            dataset, dataset.document_row.read(first, min(first + _STRETCH, dataset.num_documents) + 1), first
        ):
            yield problem
            return


def _stretch_problem(dataset: TokenFile, first: int) -> str:
    """Return what is wrong with the lengths and starts of some sequences, empty when nothing is."""
    name, scale = dataset.index_file.path, dataset.dtype.itemsize // dataset.start_unit
    most = dataset.bin_file.size // dataset.dtype.itemsize
    behind = min(first + _STRETCH, len(dataset))
    lengths, begins = dataset.length_row.read(first, behind), dataset.start_row.read(first, behind)
    if len(wrong := np.flatnonzero((lengths < 0) | (lengths > most))):
        at = int(wrong[0])
        return f"{name}: sequence {first + at} has {lengths[at]} tokens, the .bin file has only {most}"
    if len(wrong := np.flatnonzero((begins < 0) | (begins > most * scale))):
        at = int(wrong[0])
        return f"{name}: sequence {first + at} starts at {begins[at]}, the .bin file ends at {most * scale}"
    if first == 0 and begins[0] != 0:
        return f"{name}: sequence 0 starts at {begins[0]}, expected 0"
    ends = begins + lengths.astype(np.int64) * scale
    if len(wrong := np.flatnonzero(begins[1:] != ends[:-1])):
        at = int(wrong[0])
        return f"{name}: sequence {first + at + 1} starts at {begins[at + 1]}, but the one before it ends at {ends[at]}"
    if isinstance(dataset, TntDataset):
        dims = dataset.dim_row.read(first, behind)
        if len(wrong := np.flatnonzero(dims != np.arange(first, behind))):
            at = int(wrong[0])
            return f"{name}: sequence {first + at} has its size at {dims[at]}, expected {first + at}"
    return ""


def _length_problems(dataset: TokenFile) -> Iterator[str]:
    name, scale = dataset.index_file.path, dataset.dtype.itemsize // dataset.start_unit
    most = dataset.bin_file.size // dataset.dtype.itemsize
    begin = total = 0
    for block, starts in zip(dataset.length_row.blocks(), dataset.start_row.blocks(), strict=False):
        # Lengths that no file has are reported first: their sums would not fit int64.
        wrong = np.flatnonzero((block < 0) | (block > most - total))
        if len(wrong):
            at = int(wrong[0])
            yield f"{name}: sequence {begin + at} has {block[at]} tokens, the .bin file has only {most}"
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
        if problem := _documents_problem(dataset, block, begin):
            yield problem
            return
        begin += len(block) - 1


def _documents_problem(dataset: TokenFile, block: npt.NDArray[np.int64], begin: int) -> str:
    """Return what is wrong with entries of the document index from ``begin`` on, empty when nothing is."""
    # Compared, not subtracted: a difference may not fit its type.
    wrong = np.flatnonzero((block[1:] < block[:-1]) | (block[1:] > len(dataset)) | (block[:-1] < 0))
    if not len(wrong):
        return ""
    at = int(wrong[0])
    return (
        f"{dataset.index_file.path}: document {begin + at} runs from sequence {block[at]} to {block[at + 1]}, "
        f"expected a start that is not lower and at most {len(dataset)}"
    )


def _dimension_problems(dataset: TntDataset) -> Iterator[str]:
    begin = 0
    for block in dataset.dim_row.blocks():
        wrong = np.flatnonzero(block != np.arange(begin, begin + len(block)))
        if len(wrong):
            at = int(wrong[0])
            yield f"{dataset.index_file.path}: sequence {begin + at} has its size at {block[at]}, expected {begin + at}"
            return
        begin += len(block)
