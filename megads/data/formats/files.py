"""Open, read and publish files so that whatever is found under a name, nothing hangs or crashes.

Tokens are read with ``pread`` and not through a mapping: a file that somebody cuts short while it is
read, or a disk that fails, is then an error of that read, and not a signal that ends the process.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from megads.errors import DataError
from megads.storage.file_lock import take_lock, try_lock
from megads.storage.open_file import cannot_read, open_regular, write_cure

_MISSING = "a data prefix is the common part of a .bin and a .idx file"


BLOCK = 1 << 20
"""Numbers that are read or written at a time."""


class ReadFile:
    """A regular file, open for reading; it is closed with the object.

    Attributes:
        path: as given.
        size: in bytes, when it was opened.

    Raises:
        DataError: the file does not exist, it cannot be read, or it is a folder, pipe, socket or device.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = -1
        self._file, self.size = open_regular(path, missing=self._hint)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def _hint(self) -> str:
        folder = self.path.with_suffix("")
        if folder.is_dir():
            return f"{folder} is a folder, name the files in it"
        # What `data preprocess --output-prefix books` writes is books_text_document.
        made = sorted(glob.glob(f"{glob.escape(str(folder))}_*_document.idx"))
        return f"{_MISSING}; did you mean {made[0].removesuffix('.idx')}?" if made else _MISSING

    def array(self, dtype: npt.DTypeLike, count: int, start: int) -> npt.NDArray[Any]:
        """Return ``count`` numbers from byte ``start`` on, read-only.

        Raises:
            DataError: the file has become shorter, or its disk fails.
        """
        kind = np.dtype(dtype)
        return np.frombuffer(self.bytes(count * kind.itemsize, start), kind)

    def bytes(self, count: int, start: int) -> bytes:
        """Return ``count`` bytes from ``start`` on; errors as :meth:`array`."""
        try:
            found = os.pread(self._file, count, start)
        except OSError as error:
            raise cannot_read(self.path, error) from None
        if len(found) == count:
            return found
        # The end of the file, a read that was interrupted, or more than 2 GiB.
        whole = np.empty(count, "u1")
        self.read_into(whole, start)
        return whole.tobytes()

    def read_into(self, target: npt.NDArray[Any], start: int) -> None:
        """Fill ``target`` with the bytes from ``start`` on; errors as :meth:`array`."""
        done, wanted = 0, target.nbytes
        view = target.data.cast("B") if wanted else memoryview(b"")
        while done < wanted:
            try:
                got = os.preadv(self._file, [view[done:]], start + done)
            except OSError as error:
                raise cannot_read(self.path, error) from None
            if got == 0:
                raise DataError(
                    f"{self.path}: ends at byte {os.fstat(self._file).st_size}, but it had {self.size} bytes when it "
                    "was opened; it was truncated meanwhile; rerun"
                )
            done += got

    def fileno(self) -> int:
        """Return the descriptor, for copying within the kernel."""
        return self._file


class Row:
    """Integers that lie in a file one behind the other.

    Attributes:
        nbytes: of all of them.
        end: byte behind the last.
    """

    def __init__(self, file: ReadFile, dtype: str, count: int, start: int):
        """Say where they are: ``count`` of type ``dtype`` (little-endian) from byte ``start`` on."""
        self._file, self._dtype, self._count, self._start = file, np.dtype(dtype), count, start
        self._signed = self._dtype.kind == "i"
        self._size = self._dtype.itemsize
        self.nbytes = count * self._size
        self.end = start + self.nbytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> int:
        return int.from_bytes(self._file.bytes(self._size, self._start + i * self._size), "little", signed=self._signed)

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the numbers ``begin`` up to ``end``, a copy; errors as :meth:`ReadFile.array`."""
        return self._file.array(self._dtype, end - begin, self._start + begin * self._size)

    def blocks(self, begin: int = 0, overlap: int = 0, size: int = BLOCK) -> Iterator[npt.NDArray[Any]]:
        """Yield copies of all numbers from ``begin`` on, ``size`` at a time and the first ``overlap`` that follow."""
        for first in range(begin, self._count - overlap, size):
            yield self.read(first, min(first + size + overlap, self._count))


class NewFiles:
    """Files that get their names together, or not at all: ``<prefix><suffix>`` for each suffix, the last one last.

    Until :meth:`publish` they lie next to their names as ``*.tmp``. What a killed process left there
    is removed by the next one on the same host that writes the same prefix.

    Raises:
        DataError: the folder is not there or cannot be written, the disk is full.
    """

    def __init__(self, prefix: str, suffixes: tuple[str, ...]):
        self.prefix = prefix
        self._suffixes = suffixes
        self._temps: dict[str, Path] = {}
        self._open: dict[str, BinaryIO] = {}
        # Locked: nobody sees one of our files in the moment before it has its own lock.
        with self.guard(), _lock(Path(prefix).parent):
            for suffix in suffixes:
                self._create(suffix)

    def __getitem__(self, suffix: str) -> BinaryIO:
        return self._open[suffix]

    def path(self, suffix: str) -> Path:
        """Return where a file lies until it gets its name."""
        return self._temps[suffix]

    def _create(self, suffix: str) -> None:
        target = self.prefix + suffix
        ours = f"{os.uname().nodename}-"
        _remove_left_behind(Path(target), ours)
        self._temps[suffix] = Path(f"{target}.{ours}{uuid.uuid4().hex[:12]}.tmp")
        self._open[suffix] = self._temps[suffix].open("xb", buffering=1 << 20)
        try_lock(self._open[suffix].fileno())  # no locks on this file system: nothing is removed either

    def publish(self, *obsolete: str) -> None:
        """Flush every file to its disk and give it its name; remove the ``obsolete`` suffixes, which described the old.

        Between the first and the last name there is no file under the last one: an index is only
        ever seen next to the tokens it describes.
        """
        with self.guard():
            for file in self._open.values():
                file.flush()
                os.fsync(file.fileno())
            with _lock(Path(self.prefix).parent):
                for suffix in (*obsolete, self._suffixes[-1]):
                    Path(self.prefix + suffix).unlink(missing_ok=True)
                for suffix in self._suffixes:
                    self._temps[suffix].replace(self.prefix + suffix)
        self._temps.clear()
        self.drop()

    def drop(self) -> None:
        """Close everything and remove what was not published."""
        for file in self._open.values():
            try:
                file.close()
            except OSError:
                file.raw.close()  # type: ignore[attr-defined]  # its last bytes do not matter: the file goes
        for path in self._temps.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._open, self._temps = {}, {}

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Drop the files when anything fails; an error of the file system becomes one line."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.drop)
            try:
                yield
            except OSError as error:
                reason = os.strerror(error.errno or 0).lower()
                raise DataError(
                    f"{self.prefix}: cannot be written: {reason}; {write_cure(error, 'use another folder')}"
                ) from None
            stack.pop_all()


def _remove_left_behind(target: Path, ours: str) -> None:
    """Remove what a killed process of this host began under ``target``'s name: nobody holds its lock any more."""
    for path in target.parent.glob(f"{glob.escape(f'{target.name}.{ours}')}*.tmp"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if try_lock(file.fileno()):
                path.unlink()


def _lock(folder: Path) -> contextlib.AbstractContextManager[object]:
    """Hold the folder's lock, so that two writers of one prefix do not mix their files."""
    return take_lock(folder, wait_s=math.inf, is_folder=True) or contextlib.nullcontext()
