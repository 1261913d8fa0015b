"""Texts of the input by which an encoder is chosen, from many places of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megads.data.preprocess.input.files import Source, read_pieces
from megads.data.preprocess.input.json_lines import parse_lines
from megads.data.preprocess.input.ranges import RangeReader

_PLACES = 16
_PIECE = 2**15
_MOST = 500_000  # characters


def sample_texts(inputs: Sequence[Source], keys: tuple[str, ...]) -> list[str]:
    """Return some texts; none of pipes, which can be read only once.

    Raises:
        DataError: a file cannot be read.
    """
    found: list[str] = []
    left = _MOST
    for data in _pieces(inputs):
        for texts in parse_lines(data, keys).texts:
            for text in texts:
                found.append(text[:left])
                left -= len(text)
                if left <= 0:
                    return found
    return found


def _pieces(inputs: Sequence[Source]) -> Iterator[bytes]:
    """Yield lines from evenly spaced places of the plain files, and the beginnings of some others."""
    total = sum(source.size for source in inputs if source.is_plain)
    reader, before, place = RangeReader(), 0, 0
    for source in inputs:
        if source.is_plain:
            while place < _PLACES and total * place // _PLACES < before + source.size:
                start = total * place // _PLACES - before
                yield reader.read(source.path, start, min(start + _PIECE, source.size))
                place += 1
            before += source.size
    reader.close()
    packed = [source for source in inputs if not source.is_plain and source.kind != "pipe"]
    for source in packed[:: max(1, len(packed) // _PLACES)]:
        piece = next((text for text, _ in read_pieces(source)), b"")
        yield piece[: max(_PIECE, piece.find(b"\n") + 1)].rpartition(b"\n")[0]
