"""The unfinished output of one part, and the journal by which a killed run resumes.

Folder of a part::

    journal     one JSON object a line: what is made here, then each point from which to resume
    <k>.bin     tokens of key number k
    <k>.len     int32, tokens of each sequence
    <k>.doc     int64, 0 and then the number of sequences up to the end of each document

What lies behind the last point was written by a run that did not live to say so; it is cut off.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from megads.data.preprocess.input.blocks import Position
from megads.data.preprocess.workers.messages import Output
from megads.storage.reading import parse_json, read_bytes

JOURNAL = "journal"
SUFFIXES = (".bin", ".len", ".doc")


_BEGIN = Position()


@dataclass(frozen=True)
class Point:
    """How far a part is."""

    position: Position = _BEGIN
    lines: int = 0  # of the position's segment, before it
    documents: int = 0
    text_bytes: int = 0
    used: int = 0  # bytes read of the input, as it is on disk
    bad: int = 0  # lines
    bad_lines: tuple[str, ...] = ()  # the first few
    num_bytes: tuple[int, ...] = ()  # of tokens, for each key
    sequences: tuple[int, ...] = ()  # for each key
    is_done: bool = False


@dataclass
class _Sync:
    """A point on its way to the disk."""

    point: Point
    error: OSError | None = None
    thread: threading.Thread | None = field(default=None)


_MOST = 1 << 30  # bytes of a journal


class PartFiles:
    """The files of a part in ``folder``, opened where a run with the same ``digest`` left them, else made again.

    Attributes:
        point: from which to resume.
        was_there: whether that is not the beginning.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, digest: str, keys: int):
        self.folder, self._digest, self._keys = folder, digest, keys
        self._sync: _Sync | None = None
        found = read_point(folder, digest, keys)
        if found is None:
            self._make()
        self.point = found or Point(num_bytes=(0,) * keys, sequences=(0,) * keys)
        self.was_there = found is not None
        self._last = self.point
        self._cut()
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND)
        self._open: list[BinaryIO] = []
        for key in range(keys):
            for suffix in SUFFIXES:
                self._open.append((folder / f"{key}{suffix}").open("ab", buffering=2**16))

    @property
    def bins(self) -> tuple[str, ...]:
        """Paths of the tokens, one for each key."""
        return tuple(str(self.folder / f"{key}.bin") for key in range(self._keys))

    def add(self, outputs: Sequence[Output], point: Point) -> None:
        """Take in what a block, whose tokens are written, says of its sequences; ``point`` is behind it."""
        for key, output in enumerate(outputs):
            self._open[3 * key + 1].write(output.lengths.astype("<i4", copy=False).tobytes())
            ends = np.cumsum(output.sequences, dtype="<i8") + self.point.sequences[key]
            self._open[3 * key + 2].write(ends.tobytes())
        self.point = point

    def commit(self, *, wait: bool = False) -> None:
        """Make the point last on the disk; without ``wait`` in a thread, unless another one is on its way.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._sync is not None:
            if self._sync.thread is not None and self._sync.thread.is_alive() and not wait:
                return
            self._finish()
        if self.point == self._last:
            return
        for file in self._open:
            file.flush()
        self._last = self.point
        self._sync = _Sync(self.point)
        if wait:
            self._write(self._sync)
            self._finish()
        else:
            self._sync.thread = threading.Thread(target=self._write, args=(self._sync,), daemon=True)
            self._sync.thread.start()

    def close(self) -> None:
        """Close the files."""
        if self._sync is not None and self._sync.thread is not None:
            self._sync.thread.join()
        for file in self._open:
            try:
                file.close()
            except OSError:
                file.raw.close()  # type: ignore[attr-defined]  # what is lost lies behind the last point
        os.close(self._journal)

    def _finish(self) -> None:
        sync, self._sync = self._sync, None
        if sync is not None and sync.thread is not None:
            sync.thread.join()
        if sync is not None and sync.error is not None:
            raise sync.error

    def _write(self, sync: _Sync) -> None:
        """Flush the data first: a point must never be on the disk before what it speaks of."""
        try:
            for file in self._open:
                os.fdatasync(file.fileno())
            os.write(self._journal, (json.dumps(asdict(sync.point)) + "\n").encode())
            os.fdatasync(self._journal)
        except OSError as error:
            sync.error = error

    def _make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for key in range(self._keys):
            for suffix in SUFFIXES:
                (self.folder / f"{key}{suffix}").write_bytes(bytes(8) if suffix == ".doc" else b"")
        # Last: a folder with a journal has its files.
        (self.folder / JOURNAL).write_text(json.dumps({"digest": self._digest}) + "\n")

    def _cut(self) -> None:
        for (key, suffix), size in sizes_at(self.point).items():
            os.truncate(self.folder / f"{key}{suffix}", size)
        # A line that was cut short must not swallow the next one.
        journal = self.folder / JOURNAL
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)


def sizes_at(point: Point) -> dict[tuple[int, str], int]:
    """Return the size in bytes of each file at ``point``."""
    result = {}
    for key, (num_bytes, sequences) in enumerate(zip(point.num_bytes, point.sequences, strict=True)):
        sizes = (num_bytes, 4 * sequences, 8 * (point.documents + 1))
        result.update({(key, suffix): size for suffix, size in zip(SUFFIXES, sizes, strict=True)})
    return result


def read_point(folder: Path, digest: str, keys: int) -> Point | None:
    """Return the last point of a part, None where there is no part that ``digest`` made."""
    try:
        lines = read_bytes(folder / JOURNAL, _MOST).split(b"\n")[:-1]
        if parse_json(lines[0]) != {"digest": digest}:
            return None
        point = Point(num_bytes=(0,) * keys, sequences=(0,) * keys)
        if len(lines) > 1:
            point = _parse(parse_json(lines[-1]))
        held = all(
            (folder / f"{key}{suffix}").stat().st_size >= size for (key, suffix), size in sizes_at(point).items()
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return point if held else None


def _parse(content: dict[str, Any]) -> Point:
    point = Point(**content)
    return replace(
        point,
        position=Position(**content["position"]),
        bad_lines=tuple(point.bad_lines),
        num_bytes=tuple(point.num_bytes),
        sequences=tuple(point.sequences),
    )
