"""``megads corpus shuffle``: documents in a random order that a seed decides, in bounded memory.

Each line gets 64 random bits, a function of the seed and of its place in the input. The output is in the order of
these bits. Workers sort lines into files by their first bits; then each file is sorted in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from megads.data.corpus.frame.step import DROPPED, Finished, Joined, Lines, Result, Step
from megads.data.preprocess.input.files import Source

_ROW = struct.Struct("<QI")  # bits, bytes of the line that follows
_MOST_FILES = 256
_SPLIT = 64
_UNPACKED = 4  # times the size of a packed file, a guess
_ALL = 2**64
MEMORY = 256 * 2**20
"""Bytes of text that are sorted in memory at once."""


class Shuffle(Step):
    """Documents in a random order.

    Args:
        seed: of the order.
        inputs: what is shuffled.
        memory: bytes of text that are sorted at once.
    """

    name = "shuffle"
    key = ""
    takes_surrogates = True

    def __init__(self, seed: int, inputs: Sequence[Source], memory: int = MEMORY):
        self._seed, self._memory = seed, memory
        size = sum(source.size * (1 if source.is_plain else _UNPACKED) for source in inputs)
        is_pipe = any(source.kind == "pipe" for source in inputs)
        self._files = _SPLIT if is_pipe else max(1, min(_MOST_FILES, -(-size // memory)))
        self.num_streams = 2 + self._files

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output, and the layout of what is made first."""
        return {"seed": self._seed, "files": self._files}

    def block(self, lines: Lines) -> Result:
        """Return the lines of a block, each in the file of its first bits."""
        result = Result([[] for _ in range(self.num_streams)])
        found = list(self.documents(lines, result))
        begins = np.array([document.begin for document in found], np.uint64)
        for document, bits in zip(found, random_bits(self._seed, lines.source, begins).tolist(), strict=True):
            file = result.outputs[2 + bits * self._files // _ALL]
            file += (_ROW.pack(bits, len(document.line) + 1), document.line, b"\n")
        if found:
            result.count("kept", len(found))
        return result

    def finish(self, joined: Joined) -> Finished:
        """Sort file by file."""
        output = joined.folder / "shuffled"
        with output.open("wb") as target:
            for number, path in enumerate(joined.streams[2:]):
                first, last = -(-number * _ALL // self._files), -(-(number + 1) * _ALL // self._files)
                self._sort(path, target, first, last, joined)
        return Finished(output, joined.streams[DROPPED])

    def _sort(self, path: Path, target: BinaryIO, first: int, last: int, joined: Joined) -> None:
        """Append the rows of ``path``, whose bits are at least ``first`` and below ``last``, in the order of bits."""
        joined.check()
        if path.stat().st_size > 2 * self._memory and last - first > _SPLIT:
            width = -(-(last - first) // _SPLIT)
            for number, part in enumerate(self._split(path, first, width, joined)):
                self._sort(part, target, first + number * width, first + (number + 1) * width, joined)
                part.unlink()
            return
        data = path.read_bytes()
        bits, ends, at = [], [0], 0
        while at < len(data):
            each, size = _ROW.unpack_from(data, at)
            at += _ROW.size + size
            bits.append(each)
            ends.append(at)
        for row in np.argsort(np.array(bits, np.uint64), kind="stable").tolist():
            target.write(data[ends[row] + _ROW.size : ends[row + 1]])

    def _split(self, path: Path, first: int, width: int, joined: Joined) -> list[Path]:
        """Return files with the rows of ``path``, one for each ``width`` bits from ``first`` on."""
        parts = [joined.folder / f"{first:016x}-{width:x}-{number}" for number in range(_SPLIT)]
        with ExitStack() as stack:
            files = [stack.enter_context(part.open("wb")) for part in parts]
            for number, (bits, row) in enumerate(_rows(path)):
                files[(bits - first) // width].write(row)
                if number % 10_000 == 0:
                    joined.check()
        return parts


def _rows(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        while head := file.read(_ROW.size):
            bits, size = _ROW.unpack(head)
            yield bits, head + file.read(size)


def random_bits(seed: int, source: int, begins: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each line that begins at ``begins`` of input number ``source``."""
    start = _mixed(np.array([seed % _ALL], np.uint64)) ^ _mixed(np.array([source + 1], np.uint64))
    return _mixed(_mixed(begins + _mixed(start)))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return values in which every bit depends on every bit of ``values`` (splitmix64's finalizer)."""
    found = values + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))
