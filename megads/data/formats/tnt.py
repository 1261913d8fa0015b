"""Megatron's older token files, TNTIDX, made with ``--dataset-impl cached`` or ``lazy``: reader and index bytes.

Format, little-endian, as in ``indexed_dataset.py`` of Megatron-LM v2.x and BigScience's Megatron-DeepSpeed::

    .idx   8 bytes   TNTIDX, two zeros
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
    .bin   the tokens of all sequences, back to back, as in mmap files

Cached and lazy files are the same; the names say how Megatron read them (a list of sequences ahead of
time, or each when asked for). Here both are read when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from megads.data.formats.base import TokenFile
from megads.data.formats.dtypes import code_of, dtype_of
from megads.data.formats.files import BLOCK, ReadFile, Row
from megads.data.formats.index_content import IndexContent, Numbers, starts
from megads.data.formats.mmap import check_magic
from megads.errors import DataError

MAGIC = b"TNTIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<8sQQQQQQ")
_LONGEST = 2**31 - 1  # tokens of a sequence


class TntDataset(TokenFile):
    """Reads TNTIDX files; see :class:`TokenFile`."""

    impl = "cached"

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """int32 [N], tokens of each sequence; a copy, because the file holds int64.

        Raises:
            DataError: a length is negative, or larger than int32 holds.
        """
        result = np.empty(len(self), "<i4")
        done = 0
        for block in self.length_row.blocks():
            if block.min() < 0 or block.max() > _LONGEST:
                wrong = block[(block < 0) | (block > _LONGEST)][0]
                raise DataError(f"{self.index_file.path}: a sequence of {wrong} tokens; write the files again")
            result[done : done + len(block)] = block
            done += len(block)
        return result

    def _open_index(self, index: ReadFile) -> None:
        sequences, entries = self._read_header(index)
        self.start_unit = self.dtype.itemsize
        self.dim_row = Row(index, "<i8", sequences + 1, HEADER.size)
        self.start_row = Row(index, "<i8", sequences + 1, self.dim_row.end)
        self.length_row = Row(index, "<i8", sequences, self.start_row.end)
        self.document_row = Row(index, "<i8", entries, self.length_row.end)

    def _read_header(self, index: ReadFile) -> tuple[int, int]:
        """Return the number of sequences and the length of the document index."""
        head = index.bytes(min(HEADER.size, index.size), 0)
        check_magic(index, head, MAGIC, "Megatron's cached and lazy format", HEADER.size)
        _, version, code, itemsize, sequences, sizes, entries = HEADER.unpack(head)
        if version != VERSION:
            raise DataError(f"{index.path}: format version {version}, expected {VERSION}")
        self.dtype = dtype_of(code, index.path)
        if itemsize != self.dtype.itemsize:
            raise DataError(
                f"{index.path}: tokens of {itemsize} bytes, but {self.dtype} has {self.dtype.itemsize}; write it again"
            )
        if sizes != sequences:
            raise DataError(
                f"{index.path}: {sizes} sizes for {sequences} sequences; it holds items of several dimensions, "
                "expected rows of tokens"
            )
        expected = HEADER.size + 16 * (sequences + 1) + 8 * sizes + 8 * entries
        if index.size != expected:
            raise DataError(
                f"{index.path}: {index.size} bytes, expected {expected} for {sequences} sequences and "
                f"{entries} document entries; the copy is truncated or damaged"
            )
        if entries == 0:
            raise DataError(f"{index.path}: has no document index, expected at least one entry")
        return sequences, entries

    def _entry(self, i: int) -> tuple[int, int]:
        # An item's sizes are those between two dim offsets: one, for a row of tokens.
        first, last = self.dim_row[i], self.dim_row[i + 1]
        if (first, last) != (i, i + 1):
            raise DataError(
                f"{self.index_file.path}: sequence {i} has its sizes at {first}..{last}, expected {i}..{i + 1}; "
                "write the files again"
            )
        return super()._entry(i)


def tnt_index(content: IndexContent) -> Iterator[bytes | Numbers]:
    """Yield the pieces of a TNTIDX index, in order."""
    code, count = code_of(content.dtype, "index"), content.sequences
    yield HEADER.pack(MAGIC, VERSION, code, content.dtype.itemsize, count, count, content.entries)
    yield from (np.arange(a, min(a + BLOCK, count + 1), dtype="<i8") for a in range(0, count + 1, BLOCK))
    total = 0
    for block, begin in zip(content.lengths(), starts(content.lengths), strict=True):
        total += int(block.sum(dtype=np.int64))
        yield begin
    yield np.array([total], "<i8")
    yield from (block.astype("<i8") for block in content.lengths())
    yield from (block.astype("<i8") for block in content.documents())
