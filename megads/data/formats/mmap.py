"""Megatron's token files with a mapped index, MMIDIDX: the reader, and the bytes of the index.

Format, little-endian, as in Megatron-LM's ``indexed_dataset.py``::

    .idx   9 bytes   MMIDIDX, two zeros
           u64       version, 1
           u8        dtype code, see DTYPES
           u64       N, number of sequences
           u64       D, length of the document index: documents + 1
           i32 [N]   tokens of each sequence
           i64 [N]   where each sequence starts in .bin, in bytes
           i64 [D]   the sequence at which each document starts; the last entry is N
           i8  [N]   modes, in multimodal files only
    .bin   the tokens of all sequences, back to back
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from megads.data.formats.base import TokenFile
from megads.data.formats.dtypes import code_of, dtype_of
from megads.data.formats.files import ReadFile, Row
from megads.data.formats.index_content import IndexContent, Numbers, starts
from megads.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")


class IndexedDataset(TokenFile):
    """Reads MMIDIDX files. Its arrays are the file itself, mapped; see :class:`TokenFile`."""

    impl = "mmap"
    start_unit = 1

    @property
    def modes(self) -> npt.NDArray[np.int8] | None:
        """int8 [N], kind of each sequence, in multimodal files; None in others."""
        return self.mode_row.map() if self.mode_row else None

    def _open_index(self, index: ReadFile) -> None:
        sequences, entries = self._read_header(index)
        self.length_row = Row(index, "<i4", sequences, HEADER.size)
        self.start_row = Row(index, "<i8", sequences, self.length_row.end)
        self.document_row = Row(index, "<i8", entries, self.start_row.end)
        modes = Row(index, "i1", sequences, self.document_row.end)
        self.mode_row = modes if modes.end == index.size and sequences else None

    def _read_header(self, index: ReadFile) -> tuple[int, int]:
        """Return the number of sequences and the length of the document index."""
        head = index.bytes(min(HEADER.size, index.size), 0)
        check_magic(index, head, MAGIC, "Megatron's mmap format", HEADER.size)
        _, version, code, sequences, entries = HEADER.unpack(head)
        if version != VERSION:
            raise DataError(f"{index.path}: format version {version}, expected {VERSION}")
        self.dtype = dtype_of(code, index.path)
        expected = HEADER.size + 12 * sequences + 8 * entries
        if index.size not in (expected, expected + sequences):
            raise DataError(
                f"{index.path}: {index.size} bytes, expected {expected} for {sequences} sequences and "
                f"{entries} document entries; the copy is truncated or damaged"
            )
        if entries == 0:
            raise DataError(f"{index.path}: has no document index, expected at least one entry")
        return sequences, entries


def check_magic(index: ReadFile, head: bytes, magic: bytes, name: str, header_size: int) -> None:
    """Refuse an index that is empty, starts with something else, or is shorter than its header."""
    if not head:
        raise DataError(f"{index.path}: is empty, expected token data; write the files again")
    if head[: len(magic)] != magic[: len(head)]:
        raise DataError(f"{index.path}: starts with {head[:9]!r}, expected {magic!r} of {name}")
    if len(head) < header_size:
        raise DataError(f"{index.path}: truncated, {len(head)} bytes, expected at least the {header_size} of a header")


def mmap_index(content: IndexContent) -> Iterator[bytes | Numbers]:
    """Yield the pieces of an MMIDIDX index, in order."""
    code = code_of(content.dtype, "index")
    yield HEADER.pack(MAGIC, VERSION, code, content.sequences, content.entries)
    yield from (block.astype("<i4") for block in content.lengths())
    yield from starts(content.lengths, content.dtype.itemsize)
    yield from (block.astype("<i8") for block in content.documents())
    if content.modes is not None:
        yield from (block.astype("i1") for block in content.modes())
