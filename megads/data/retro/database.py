"""The chunks that are retrieved: which tokens of which document each one is, and the tokens themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.token_file import TokenFile
from megads.data.retro.blocks import Table, read_arrays
from megads.errors import DataError

COLUMNS = 5
"""Of a chunk: data set, document, first token, behind the last token, length in BERT's tokens."""

_ROWS = 1 << 20  # read at once


class Database:
    """A table of chunks, ``merged/<split>.hdf5`` of a project, and the token files they are cut from.

    Attributes:
        rows: uint32 [chunks, 5], on disk; see :data:`COLUMNS`.

    Raises:
        DataError: the table is missing, damaged, or not complete.
    """

    def __init__(self, path: Path, files: Sequence[TokenFile], chunk_length: int, eod: int):
        self.path, self.chunk_length, self.eod = path, chunk_length, eod
        self._files = files
        self.rows = Table(path, "chunks", COLUMNS)
        written = int(read_arrays(path, {"n_written": (1,)})["n_written"][0])
        if written != len(self.rows):
            raise DataError(
                f"{path}: {written} of {len(self.rows)} chunks were written; remove it and rerun `megads retro build`"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def documents(self) -> npt.NDArray[np.uint32]:
        """Return the data set and the document of every chunk, uint32 [chunks, 2]."""
        found = np.empty((len(self), 2), np.uint32)
        for start in range(0, len(self), _ROWS):
            rows = self.rows.read(start, min(start + _ROWS, len(self)))
            found[start : start + len(rows)] = rows[:, :2]
        return found

    def chunk(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of a chunk, 1 to ``chunk_length`` of them, as stored.

        Raises:
            DataError: the table does not fit the token files.
        """
        file, document, start, stop, _ = self.rows.read(number, number + 1)[0].tolist()
        if file >= len(self._files) or not 0 <= start < stop <= start + self.chunk_length:
            raise self._misfit(number, (file, document, start, stop))
        try:
            return self._files[file].get(document, start, stop - start)
        except IndexError:
            raise self._misfit(number, (file, document, start, stop)) from None

    def tokens(self, ids: npt.ArrayLike, length: int) -> npt.NDArray[np.int64]:
        """Return the tokens of chunks and of those behind them, int64 [.., length].

        The chunks after chunk ``i`` are ``i + 1`` and so on, after the last one the first, as in Megatron-core; also
        where the next one is of another document. A chunk shorter than the others is filled up with the token that
        ends documents, and so is all of a neighbour that is missing (-1), where Megatron-core reads the last chunk.

        Args:
            ids: of any shape; -1 where there is no neighbour.
            length: a multiple of the length of a chunk.

        Raises:
            DataError: an id is not in the table, or the table does not fit the token files.
        """
        numbers = np.asarray(ids, np.int64)
        if length % self.chunk_length or length < 1:
            raise DataError(f"{length} retrieved tokens: expected a multiple of the chunk length, {self.chunk_length}")
        outside = (numbers < -1) | (numbers >= len(self))
        if outside.any():
            raise DataError(f"{self.path}: chunk {numbers[outside].flat[0]} does not exist, there are {len(self)}")
        count = length // self.chunk_length
        out = np.full((*numbers.shape, count, self.chunk_length), self.eod, np.int64)
        places = out.reshape(-1, count, self.chunk_length)
        for place, number in zip(places, numbers.ravel().tolist(), strict=True):
            for further in range(count if number >= 0 else 0):
                found = self.chunk((number + further) % len(self))
                place[further, : len(found)] = found
        return out.reshape(*numbers.shape, length)

    def _misfit(self, number: int, row: tuple[int, ...]) -> DataError:
        return DataError(
            f"{self.path}: chunk {number} is tokens {row[2]}..{row[3]} of document {row[1]} of data set {row[0]}, "
            f"which the {len(self._files)} token files do not have; they changed since the database was built"
        )
