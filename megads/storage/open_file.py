"""Open a file that must be one: a pipe would wait for a writer, a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from megads.errors import DataError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that space cures."""


class NotRegular(OSError):
    """What has the name is not a file, or no file can have it; ``strerror`` says what it is."""

    def __init__(self, what: str):
        super().__init__(errno.EINVAL, f"{what}, expected a regular file")


def open_file(path: str | Path) -> tuple[int, int]:
    """Open a regular file for reading, without waiting; return its descriptor and its size in bytes.

    Raises:
        OSError: the file does not exist, or it cannot be read.
        NotRegular: it is a folder, pipe, socket or device, or the name holds a zero byte.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise NotRegular(f"{error} in its name") from None
    except OSError:
        kind = kind_of(path)  # a socket cannot be opened
        if kind:
            raise NotRegular(f"is {kind}") from None
        raise
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode):
        return handle, found.st_size
    os.close(handle)
    raise NotRegular(f"is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}")


def open_binary(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, in place of ``open(path, "rb")``; errors as :func:`open_file`."""
    return os.fdopen(open_file(path)[0], "rb")


def kind_of(path: str | Path) -> str:
    """Return what has this name when it is not a regular file, as ``a pipe``; empty for files and where nothing is."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def open_regular(
    path: str | Path, *, missing: Callable[[], str], expected: str = "expected a regular file", name: str = ""
) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size in bytes.

    Args:
        path: of the file.
        missing: called when the file does not exist; returns what would work.
        expected: what should have been there, for the message.
        name: how the message calls the file; empty: its path.

    Raises:
        DataError: the file does not exist, it cannot be read, or it is a folder, pipe, socket or device.
    """
    name = name or str(path)
    try:
        return open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{name}: no such file; {missing()}") from None
    except NotRegular as error:
        raise DataError(f"{name}: {str(error.strerror).partition(',')[0]}; {expected}") from None
    except OSError as error:
        raise cannot_read(name, error) from None


def write_cure(error: OSError, elsewhere: str) -> str:
    """Return what helps after a failed write: space where a disk is full, and ``elsewhere`` in any case."""
    if error.errno in FULL:
        return f"free some space or {elsewhere}"
    if error.errno == errno.EIO:
        return f"its disk or the path to it fails; free space does not help: see the system's log, or {elsewhere}"
    return elsewhere


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """Return the one line for an error of the file system."""
    return DataError(f"{path}: cannot be read: {str(error.strerror).lower()}")
