"""Read lines from the middle of files, and a sample of the input's texts from many places of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from megads.data.preprocess.input.files import LONGEST_LINE, Source, read_pieces
from megads.data.preprocess.input.json_lines import parse_lines
from megads.errors import DataError

_SLACK = 2**16
"""Bytes read beyond what is asked for, to have the end of its last line at once."""
_SAMPLE_PLACES, _SAMPLE_BYTES = 16, 2**15  # of each place
_SAMPLE_CHARACTERS = 400_000  # in all


class RangeReader:
    """Reads lines from the middle of files; keeps the last file open.

    Attributes:
        begin: where in the file the lines that were read last begin.
    """

    def __init__(self) -> None:
        self.begin = 0
        self._path = ""
        self._file = -1

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return the lines of ``path`` that begin at bytes ``start`` up to ``stop``, whole; else DataError."""
        try:
            if path != self._path:
                self.close()
                self._file = os.open(path, os.O_RDONLY)
                self._path = path
            return self._read_lines(start, stop)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {str(error.strerror).lower()}") from None

    def close(self) -> None:
        """Close the file."""
        if self._path:
            os.close(self._file)
            self._path = ""

    def _read_lines(self, start: int, stop: int) -> bytes:
        # A line begins at ``start`` if the byte before it ends another one.
        base = max(start - 1, 0)
        data = os.pread(self._file, stop - base + _SLACK, base)
        begin = data.find(b"\n", 0, stop - 1 - base) + 1 if start else 0
        self.begin = base + begin
        if start and not begin:
            return b""
        end = data.find(b"\n", max(stop - 1 - base, begin)) + 1
        return data[begin:end] if end else self._read_to_end_of_line(data[begin:], base + len(data))

    def _read_to_end_of_line(self, data: bytes, at: int) -> bytes:
        """Return ``data`` with what follows in the file up to the end of its last line."""
        parts, size = [data], _SLACK
        while True:
            size = min(2 * size, 2**26)
            more = os.pread(self._file, size, at)
            end = more.find(b"\n") + 1
            parts.append(more[:end] if end else more)
            if sum(map(len, parts)) > LONGEST_LINE + _SLACK and not end:
                raise DataError(
                    f"{self._path}: near byte {at}: a line of more than {LONGEST_LINE >> 20} MiB; is this a file of "
                    "JSON lines?"
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


def sample_texts(inputs: Sequence[Source], keys: tuple[str, ...]) -> list[str]:
    """Return texts by which an encoder is chosen; none of pipes, which can be read only once."""
    found: list[str] = []
    left = _SAMPLE_CHARACTERS
    for data in _sampled_lines(inputs):
        for texts in parse_lines(data, keys).texts:
            for text in texts:
                found.append(text[:left])
                left -= len(text)
                if left <= 0:
                    return found
    return found


def _sampled_lines(inputs: Sequence[Source]) -> Iterator[bytes]:
    """Yield lines from evenly spaced places of the plain files, and the beginnings of some others."""
    total = sum(source.size for source in inputs if source.is_plain)
    reader, before, place = RangeReader(), 0, 0
    for source in inputs:
        if source.is_plain:
            while place < _SAMPLE_PLACES and total * place // _SAMPLE_PLACES < before + source.size:
                start = total * place // _SAMPLE_PLACES - before
                yield reader.read(source.path, start, min(start + _SAMPLE_BYTES, source.size))
                place += 1
            before += source.size
    reader.close()
    packed = [source for source in inputs if not source.is_plain and source.kind != "pipe"]
    for source in packed[:: max(1, len(packed) // _SAMPLE_PLACES)]:
        piece = next((text for text, _ in read_pieces(source)), b"")
        yield piece[: max(_SAMPLE_BYTES, piece.find(b"\n") + 1)].rpartition(b"\n")[0]
