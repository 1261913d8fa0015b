"""A file of JSON lines that grows in order, and that a killed command completes when it is run again.

Lines go to ``FILE.part``; ``FILE.part.json`` says what makes them. A complete file gets its name, and
``FILE.report.json`` keeps what made it, so that the same command has nothing left to do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from megads.errors import DataError
from megads.storage.durable import sync, write_synced
from megads.storage.file_lock import FileLock, take_lock
from megads.storage.open_file import kind_of, open_binary, write_cure
from megads.storage.reading import parse_json, read_json

SYNC_S = 5.0
"""Seconds between two flushes to the disk itself."""


def report_of(target: Path) -> Path:
    """Return the file that says what made ``target``."""
    return target.with_name(target.name + ".report.json")


class OutputLines:
    """The lines of ``target``: those that an earlier call of the same command has written, and new ones.

    Args:
        target: of the complete file.
        about: what decides the lines, as JSON; a file that something else made is an error.
        unit: lines that are written together; of an incomplete unit nothing is kept.
        overwrite: replace what another command made.
        now: a clock in seconds.

    Raises:
        DataError: the file exists and something else made it, another process writes it, or it cannot be written.
    """

    def __init__(
        self,
        target: Path,
        about: Mapping[str, Any],
        *,
        unit: int = 1,
        overwrite: bool = False,
        now: Callable[[], float] = time.monotonic,
    ):
        self.target, self._now = target, now
        self.about = parse_json(json.dumps(about))
        self._part, self._journal = (target.with_name(target.name + end) for end in (".part", ".part.json"))
        self.done, self._handle, self._lock = 0, -1, None
        _check_place(target)
        try:
            self._lock = _lock(target)
            self.is_complete = self._find_complete(overwrite)
            if not self.is_complete:
                self._begin(unit, overwrite)
        except OSError as error:
            self.close()
            raise _cannot_write(target, error) from None
        except DataError:
            self.close()
            raise
        self._synced = now()

    def __enter__(self) -> OutputLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, records: Iterable[Any]) -> None:
        """Add a line for each record; DataError where the disk is full or fails."""
        lines = [json.dumps(record) + "\n" for record in records]
        content = memoryview("".join(lines).encode())
        try:
            while content:
                content = content[os.write(self._handle, content) :]
            if self._now() - self._synced >= SYNC_S:
                os.fsync(self._handle)
                self._synced = self._now()
        except OSError as error:
            raise _cannot_write(self.target, error) from None
        self.done += len(lines)

    def publish(self, **counts: Any) -> None:
        """Give the file its name; ``counts`` go to its report."""
        try:
            os.fsync(self._handle)
            size = os.fstat(self._handle).st_size
            content = {"about": self.about, "lines": self.done, "bytes": size, **counts}
            temporary = self._journal.with_suffix(".tmp")
            write_synced(temporary, (json.dumps(content, indent=1) + "\n").encode())
            os.replace(self._part, self.target)
            os.replace(temporary, report_of(self.target))
            self._journal.unlink(missing_ok=True)
            sync(self.target.parent)
        except OSError as error:
            raise _cannot_write(self.target, error) from None
        self.is_complete = True

    def close(self) -> None:
        """Let go of the file; what is written stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._lock:
            self._lock.release()
            self._lock = None

    def _find_complete(self, overwrite: bool) -> bool:
        """Return whether the file is there, made by this command."""
        if overwrite or not self.target.exists():
            return False
        report = report_of(self.target)
        content: Any = None
        with suppress(OSError, ValueError):
            content = read_json(report)
        about = content.get("about") if isinstance(content, dict) else None
        if not isinstance(about, dict) or content.get("bytes") != self.target.stat().st_size:
            raise DataError(f"{self.target}: already exists; pass another file, or --overwrite to replace it")
        if about != self.about:
            raise DataError(
                f"{self.target}: already exists, made with {_difference(about, self.about)}; pass another file, or "
                "--overwrite to replace it"
            )
        self.done = int(content["lines"])
        return True

    def _begin(self, unit: int, overwrite: bool) -> None:
        """Open the part where an earlier call left it, or an empty one."""
        content: Any = None
        with suppress(OSError, ValueError):
            content = read_json(self._journal)
        if isinstance(content, dict) and isinstance(content.get("about"), dict) and self._part.exists():
            if content["about"] == self.about and isinstance(content.get("unit"), int):
                self.unit = content["unit"]
                self._resume()
                return
            if not overwrite:
                raise DataError(
                    f"{self._part}: begun with {_difference(content['about'], self.about)}; pass another file, or "
                    "--overwrite to replace it"
                )
        self.unit = unit
        self._part.unlink(missing_ok=True)
        write_synced(self._journal, json.dumps({"about": self.about, "unit": unit}).encode())
        self._handle = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _resume(self) -> None:
        """Cut off what is not whole: a crash may leave half a line, or blocks of zeros."""
        ends = [0]
        with open_binary(self._part) as file:
            for line in file:
                try:
                    is_whole = line.endswith(b"\n") and isinstance(parse_json(line), dict)
                except ValueError:
                    is_whole = False
                if not is_whole:
                    break
                ends.append(ends[-1] + len(line))
        self.done = (len(ends) - 1) // self.unit * self.unit
        self._handle = os.open(self._part, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._handle, ends[self.done])


def _check_place(target: Path) -> None:
    if kind := kind_of(target):
        raise DataError(f"{target}: is {kind}; pass a file")
    if not target.parent.is_dir():
        raise DataError(f"{target}: its folder does not exist; create it, or pass another file")


def _lock(target: Path) -> FileLock:
    lock = take_lock(target.with_name(target.name + ".lock"), temporary=True)
    if lock is None:
        raise DataError(f"{target}: another process writes it; wait for it, or pass another file")
    return lock


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first setting that differs, as ``seed 1, not 2``."""
    for name in (*now, *before):
        if before.get(name) != now.get(name):
            return f"{name} {before.get(name)!s:.80}, not {now.get(name)!s:.80}"
    return "other settings"


def _cannot_write(target: Path, error: OSError) -> DataError:
    return DataError(f"{target}: cannot be written: {error.strerror}; {write_cure(error, 'pass another file')}")
