"""What every reader of token files offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.files import ReadFile, Row
from megads.data.formats.prefix import strip_suffix
from megads.errors import DataError


class TokenFile(ABC):
    """The sequences of ``<prefix>.bin``; opening reads a few numbers, for any size.

    A document is one sequence in files made for GPT, several in files split into sentences, none when
    it was empty. Each file takes two descriptors, and one more while :attr:`lengths` or
    :attr:`document_index` is held.

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
        self._allow_empty = allow_empty
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

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """int32 [N], tokens of each sequence. Made when asked for: keep it rather than ask in a loop."""
        return self.length_row.map()

    @property
    def document_index(self) -> npt.NDArray[np.int64]:
        """int64 [D], first sequence of each document, then N. Made when asked for, as :attr:`lengths`."""
        return self.document_row.map()

    def __len__(self) -> int:
        """Return N, the number of sequences."""
        return self._sequences

    def __reduce__(self) -> tuple[Any, ...]:
        # Open files cannot be pickled; another process opens them again.
        return _reopen, (type(self), self.prefix, self._allow_empty)

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


def _reopen(kind: type[TokenFile], prefix: str, allow_empty: bool) -> TokenFile:
    return kind(prefix, allow_empty=allow_empty)
