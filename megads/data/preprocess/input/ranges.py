"""Read lines from the middle of files."""

from __future__ import annotations

import os

from megads.data.preprocess.input.files import LONGEST_LINE
from megads.errors import DataError

_SLACK = 2**16
"""Bytes read beyond what is asked for, to have the end of its last line at once."""


class LongLine(Exception):
    """A line that is too long to be a document."""


class RangeReader:
    """Reads lines from the middle of files; keeps the last file open."""

    def __init__(self) -> None:
        self._path = ""
        self._file = -1

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return the lines of ``path`` that begin at bytes ``start`` up to ``stop``, whole.

        Raises:
            DataError: the file cannot be read.
        """
        try:
            if path != self._path:
                self.close()
                self._file = os.open(path, os.O_RDONLY)
                self._path = path
            return _read_lines_of(self._file, start, stop)
        except LongLine as error:
            raise DataError(f"{path}: {error}") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {str(error.strerror).lower()}") from None

    def close(self) -> None:
        """Close the file."""
        if self._path:
            os.close(self._file)
            self._path = ""


def _read_lines_of(file: int, start: int, stop: int) -> bytes:
    # A line begins at ``start`` if the byte before it ends another one.
    base = max(start - 1, 0)
    data = os.pread(file, stop - base + _SLACK, base)
    begin = 0
    if start:
        begin = data.find(b"\n", 0, stop - 1 - base) + 1
        if not begin:
            return b""
    end = data.find(b"\n", max(stop - 1 - base, begin)) + 1
    if end:
        return data[begin:end]
    return _read_to_end_of_line(file, data[begin:], base + len(data))


def _read_to_end_of_line(file: int, data: bytes, at: int) -> bytes:
    """Return ``data`` with what follows in the file up to the end of its last line."""
    parts, size = [data], _SLACK
    while True:
        size = min(2 * size, 2**26)
        more = os.pread(file, size, at)
        end = more.find(b"\n") + 1
        parts.append(more[:end] if end else more)
        if sum(map(len, parts)) > LONGEST_LINE + _SLACK and not end:
            raise LongLine(
                f"near byte {at}: a line of more than {LONGEST_LINE >> 20} MiB; is this a file of JSON lines?"
            )
        if end or not more:
            return b"".join(parts)
        at += len(more)


def count_lines(path: str, stop: int) -> int:
    """Return how many lines of a file end before byte ``stop``."""
    count = 0
    with open(path, "rb") as file:
        while stop > 0 and (piece := file.read(min(stop, 2**22))):
            count += piece.count(b"\n")
            stop -= len(piece)
    return count
