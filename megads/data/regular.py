"""Open a file that must be one: a pipe would wait for a writer, a device may never end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from megads.errors import DataError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(
    path: str | Path, *, missing: Callable[[], str], expected: str = "expected a regular file", name: str = ""
) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its size in bytes.

    Args:
        path: of the file.
        missing: called when there is no such file; returns what would work.
        expected: what should have been there, for the message.
        name: how the message calls the file; empty: its path.

    Raises:
        DataError: there is no such file, it can not be read, or it is a folder, pipe, socket or device.
    """
    name = name or str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{name}: no such file; {missing()}") from None
    except ValueError as error:  # a name with a zero byte
        raise DataError(f"{name}: {error}; {expected}") from None
    except OSError as error:
        raise cannot_read(name, error) from None
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode):
        return handle, found.st_size
    os.close(handle)
    raise DataError(f"{name}: is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}; {expected}")


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """Return the one line for an error of the file system."""
    return DataError(f"{path}: can not be read: {os.strerror(error.errno or 0).lower()}")
