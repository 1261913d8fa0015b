"""Megatron's token files: the readers of both kinds of index.

All numbers are little-endian. ``.bin`` holds the tokens of all sequences, back to back. The index ``.idx`` is
MMIDIDX, as in Megatron-LM's ``indexed_dataset.py``::

    9 bytes   MMIDIDX, two zeros
    u64       version, 1
    u8        dtype code, see DTYPES
    u64       N, number of sequences
    u64       D, length of the document index: documents + 1
    i32 [N]   tokens of each sequence
    i64 [N]   where each sequence starts in .bin, in bytes
    i64 [D]   the sequence at which each document starts; the last entry is N
    i8  [N]   modes, in multimodal files only

or TNTIDX, made with ``--dataset-impl cached`` or ``lazy``, as in Megatron-LM v2.x and BigScience's
Megatron-DeepSpeed::

    8 bytes   TNTIDX, two zeros
    u64       version, 1
    u64       dtype code, see DTYPES
    u64       bytes of one token
    u64       N, number of sequences
    u64       S, number of sizes; N, because a sequence of tokens has one dimension
    u64       D, length of the document index: documents + 1
    i64 [N+1] where the sizes of each sequence begin: 0 1 2 ... N
    i64 [N+1] where each sequence starts in .bin, in tokens; the last entry is their number
    i64 [S]   sizes: tokens of each sequence
    i64 [D]   the sequence at which each document starts; the last entry is N

Cached and lazy files are the same; the names say how Megatron read them (a list of sequences ahead of
time, or each when asked for). Here both are read when asked for.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.dtypes import dtype_of
from megads.data.formats.files import ReadFile, Row
from megads.data.formats.prefix import strip_suffix
from megads.errors import DataError

VERSION = 1
MMAP_MAGIC, TNT_MAGIC = b"MMIDIDX\x00\x00", b"TNTIDX\x00\x00"
MMAP_HEADER, TNT_HEADER = struct.Struct("<9sQBQQ"), struct.Struct("<8sQQQQQQ")


class TokenFile(ABC):
    """The sequences of ``<prefix>.bin``; opening reads a few numbers, for any size.

    A document is one sequence in files made for GPT, several in files split into sentences, none when
    it was empty. Each file takes two descriptors.

    Attributes:
        prefix: path without suffix.
        impl: name of the format, "mmap" or "cached".
        dtype: of the stored tokens.
        num_tokens: in the whole file.
        num_documents: entries of the document index less one.
        length_row, start_row, document_row: the numbers as they stand in the index, to be read in pieces.
        start_unit: bytes that one step of a start is.

    Raises:
        DataError: a file is missing, unreadable, of another format, cut short, the two do not belong
            together, or there are no sequences and not ``allow_empty``.
    """

    impl: str
    dtype: np.dtype[Any]
    num_tokens: int
    num_documents: int
    length_row: Row
    start_row: Row
    document_row: Row
    start_unit: int

    def __init__(self, prefix: str | Path, *, allow_empty: bool = False):
        self.prefix = strip_suffix(str(prefix))
        self.index_file = ReadFile(Path(self.prefix + ".idx"))
        self._open_index(self.index_file)
        self._sequences, self.num_documents = len(self.length_row), len(self.document_row) - 1
        if self._sequences == 0 and not allow_empty:
            raise DataError(f"{self.index_file.path}: holds no sequences, expected at least one")
        self._check_documents()
        self.bin_file = ReadFile(Path(self.prefix + ".bin"))
        self._check_size()

    @abstractmethod
    def _open_index(self, index: ReadFile) -> None:
        """Check the header; set dtype, start_unit and the rows."""

    def _entry(self, i: int) -> tuple[int, int]:
        """Return where sequence ``i`` starts, in bytes, and its tokens, as the index says; it may be nonsense."""
        return self.start_row[i] * self.start_unit, self.length_row[i]

    def __len__(self) -> int:
        """Return N, the number of sequences."""
        return self._sequences

    def get(self, i: int, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
        """Return ``length`` tokens of sequence ``i`` from ``offset`` on, read-only, as stored.

        Raises:
            DataError: the index points outside of the .bin file, or a file was cut short since it was opened.
            IndexError: the sequence does not exist, or it has no such tokens.
        """
        if not 0 <= i < self._sequences:
            raise IndexError(f"{self.prefix} has {self._sequences} sequences, index {i} does not exist")
        start, size = self._entry(i)
        if size < 0 or start < 0 or start + size * self.dtype.itemsize > self.bin_file.size:
            raise DataError(
                f"{self.prefix}.idx: sequence {i} (byte {start}, {size} tokens) lies outside of "
                f"{self.bin_file.path.name}; write the files again"
            )
        count = size - offset if length is None else length
        if not 0 <= offset <= offset + count <= size:
            raise IndexError(f"sequence {i} of {self.prefix} has {size} tokens, not {offset}..{offset + count}")
        return self.bin_file.array(self.dtype, count, start + offset * self.dtype.itemsize)

    def _check_size(self) -> None:
        """Refuse a .bin file that does not end where the last sequence does."""
        start, size = self._entry(self._sequences - 1) if self._sequences else (0, 0)
        expected = start + size * self.dtype.itemsize
        if self.bin_file.size != expected or start < 0 or size < 0:
            raise DataError(
                f"{self.bin_file.path}: has {self.bin_file.size} bytes, expected {expected} from "
                f"{self.index_file.path.name}; the copy is truncated, or the two files do not belong together"
            )
        self.num_tokens = expected // self.dtype.itemsize

    def _check_documents(self) -> None:
        """Refuse a document index that does not run from 0 to the number of sequences."""
        first, last = self.document_row[0], self.document_row[self.num_documents]
        if first != 0 or last != self._sequences:
            raise DataError(
                f"{self.index_file.path}: broken document index: it runs from {first} to {last}, "
                f"expected 0 to {self._sequences}; write the files again"
            )


class IndexedDataset(TokenFile):
    """Reads MMIDIDX files; see :class:`TokenFile`.

    Attributes:
        mode_row: kind of each sequence, int8, in multimodal files; None in others.
    """

    impl = "mmap"
    start_unit = 1

    def _open_index(self, index: ReadFile) -> None:
        code, sequences, entries = _read_header(index, MMAP_HEADER, MMAP_MAGIC, "Megatron's mmap format")
        self.dtype = dtype_of(code, index.path)
        expected = MMAP_HEADER.size + 12 * sequences + 8 * entries
        _check_index_size(index, sequences, entries, expected, expected + sequences)
        self.length_row = Row(index, "<i4", sequences, MMAP_HEADER.size)
        self.start_row = Row(index, "<i8", sequences, self.length_row.end)
        self.document_row = Row(index, "<i8", entries, self.start_row.end)
        modes = Row(index, "i1", sequences, self.document_row.end)
        self.mode_row = modes if modes.end == index.size and sequences else None


class TntDataset(TokenFile):
    """Reads TNTIDX files; see :class:`TokenFile`."""

    impl = "cached"

    def _open_index(self, index: ReadFile) -> None:
        name = "Megatron's cached and lazy format"
        code, itemsize, sequences, sizes, entries = _read_header(index, TNT_HEADER, TNT_MAGIC, name)
        self.dtype = dtype_of(code, index.path)
        self.start_unit = self.dtype.itemsize
        if itemsize != self.dtype.itemsize:
            raise DataError(
                f"{index.path}: tokens of {itemsize} bytes, but {self.dtype} has {self.dtype.itemsize}; write it again"
            )
        if sizes != sequences:
            raise DataError(
                f"{index.path}: {sizes} sizes for {sequences} sequences; it holds items of several dimensions, "
                "expected rows of tokens"
            )
        expected = TNT_HEADER.size + 16 * (sequences + 1) + 8 * sizes + 8 * entries
        _check_index_size(index, sequences, entries, expected)
        self.dim_row = Row(index, "<i8", sequences + 1, TNT_HEADER.size)
        self.start_row = Row(index, "<i8", sequences + 1, self.dim_row.end)
        self.length_row = Row(index, "<i8", sequences, self.start_row.end)
        self.document_row = Row(index, "<i8", entries, self.length_row.end)

    def _entry(self, i: int) -> tuple[int, int]:
        # An item's sizes are those between two dim offsets: one, for a row of tokens.
        first, last = self.dim_row[i], self.dim_row[i + 1]
        if (first, last) != (i, i + 1):
            raise DataError(
                f"{self.index_file.path}: sequence {i} has its sizes at {first}..{last}, expected {i}..{i + 1}; "
                "write the files again"
            )
        return super()._entry(i)


def open_dataset(prefix: str | Path, *, allow_empty: bool = False) -> TokenFile:
    """Return the reader for ``<prefix>.idx``, by the first bytes of it.

    Raises:
        DataError: as :class:`TokenFile`.
    """
    index = ReadFile(Path(strip_suffix(str(prefix)) + ".idx"))
    head = index.bytes(min(len(TNT_MAGIC), index.size), 0)
    return (TntDataset if head == TNT_MAGIC else IndexedDataset)(prefix, allow_empty=allow_empty)


def _read_header(index: ReadFile, header: struct.Struct, magic: bytes, name: str) -> tuple[int, ...]:
    """Return the numbers behind the version; refuse an index that is empty, another format, or shorter than that."""
    head = index.bytes(min(header.size, index.size), 0)
    if not head:
        raise DataError(f"{index.path}: is empty, expected token data; write the files again")
    if head[: len(magic)] != magic[: len(head)]:
        raise DataError(f"{index.path}: starts with {head[:9]!r}, expected {magic!r} of {name}")
    if len(head) < header.size:
        raise DataError(f"{index.path}: truncated, {len(head)} bytes, expected at least the {header.size} of a header")
    _, version, *numbers = header.unpack(head)
    if version != VERSION:
        raise DataError(f"{index.path}: format version {version}, expected {VERSION}")
    return tuple(numbers)


def _check_index_size(index: ReadFile, sequences: int, entries: int, *expected: int) -> None:
    if index.size not in expected:
        raise DataError(
            f"{index.path}: {index.size} bytes, expected {expected[0]} for {sequences} sequences and "
            f"{entries} document entries; the copy is truncated or damaged"
        )
    if entries == 0:
        raise DataError(f"{index.path}: has no document index, expected at least one entry")
