"""Cut a part of the input into blocks, each of whole lines and about the same size."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from megads.data.preprocess.input.files import LONGEST_LINE, Source, read_pieces
from megads.data.preprocess.plan import Segment
from megads.data.preprocess.workers.pool import Block
from megads.errors import DataError

_AHEAD = 3
"""Blocks that are unpacked before anybody asks for them."""


@dataclass(frozen=True)
class Position:
    """Where to resume in a part; everything before it is done."""

    segment: int = 0
    offset: int = 0  # in the segment's file, in bytes of text


class Blocks:
    """The blocks of a part, in order."""

    def __init__(self, inputs: Sequence[Source], segments: Sequence[Segment], begin: Position, size: int):
        self.is_done = False  # there are no more
        self.bell, self._ring = os.pipe()  # becomes readable when the next block may have come
        for end in (self.bell, self._ring):
            os.set_blocking(end, False)
        self._inputs, self._segments, self._size = inputs, segments, size
        self._feed: _Feed | None = None
        self._count = 0
        self._blocks = self._all(begin)

    def next(self) -> Block | None:
        """Return the next block; None when it is not there yet, or :attr:`is_done`. DataError: bad input."""
        try:
            return next(self._blocks)
        except StopIteration:
            self.is_done = True
            return None

    def close(self) -> None:
        """Stop reading ahead."""
        if self._feed is not None:
            self._feed.stop()
        os.close(self.bell)

    def _all(self, begin: Position) -> Iterator[Block | None]:
        for index in range(begin.segment, len(self._segments)):
            segment = self._segments[index]
            source = self._inputs[segment.source]
            offset = begin.offset if index == begin.segment else 0
            cut = self._cut if source.is_plain else self._unpack
            yield from cut(index, source, max(offset, segment.start), segment)

    def _cut(self, index: int, source: Source, offset: int, segment: Segment) -> Iterator[Block]:
        while offset < segment.stop:
            stop = min(offset + self._size, segment.stop)
            yield self._new(index, source, offset, stop, stop - segment.start)
            offset = stop

    def _unpack(self, index: int, source: Source, offset: int, segment: Segment) -> Iterator[Block | None]:
        self._feed = feed = _Feed(source, offset, self._size, self._ring)
        while True:
            with suppress(BlockingIOError):
                os.read(self.bell, 4096)
            try:
                found = feed.blocks.get_nowait()
            except queue.Empty:
                yield None
                continue
            if isinstance(found, Exception):
                raise found
            if found is None:
                return
            start, data, used = found
            yield self._new(index, source, start, start + len(data), used, data)

    def _new(self, index: int, source: Source, start: int, stop: int, used: int, data: bytes | None = None) -> Block:
        self._count += 1
        return Block(self._count - 1, index, source.path, start, stop, used, data)


class _Feed:
    """Reads what can only be read from its beginning, in a thread of its own."""

    def __init__(self, source: Source, offset: int, size: int, ring: int):
        # (where the text begins, whole lines, bytes of the file read so far); an error; None at the end.
        self.blocks: queue.Queue[tuple[int, bytes, int] | Exception | None] = queue.Queue(_AHEAD)
        self._source, self._offset, self._size, self._ring = source, offset, size, ring
        self._is_stopped = False
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Let the thread end, which may wait for room in the queue."""
        self._is_stopped = True
        with suppress(queue.Empty):
            while True:
                self.blocks.get_nowait()

    def _run(self) -> None:
        try:
            for found in self._texts():
                self._put(found)
                if self._is_stopped:
                    return
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, found: tuple[int, bytes, int] | Exception | None) -> None:
        self.blocks.put(found)
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._ring, b".")

    def _texts(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield blocks: each ends with the first line that makes it large enough."""
        parts: list[bytes] = []
        size, start, used, skip, line = 0, self._offset, 0, self._offset, 0
        for text, used in read_pieces(self._source):
            # What was done before the run was interrupted.
            at, skip = min(skip, len(text)), max(0, skip - len(text))
            while end := text.find(b"\n", at + max(0, self._size - size - 1)) + 1:
                data = b"".join([*parts, text[at:end]])
                yield start, data, used
                start, line = start + len(data), line + data.count(b"\n")
                parts, size, at = [], 0, end
            parts.append(text[at:])
            size += len(text) - at
            if size > LONGEST_LINE + self._size:
                number = line + sum(part.count(b"\n") for part in parts) + 1
                raise DataError(
                    f"{self._source.path}: line {number} has more than {LONGEST_LINE >> 20} MiB; a line is a document: "
                    "is this a file of JSON lines?"
                )
        if size:
            yield start, b"".join(parts), used
