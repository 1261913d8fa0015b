"""Writes that are on the disk itself when they return: a crash of the host does not undo them."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_synced(path: Path, content: bytes) -> None:
    """Write a whole file; OSError where that fails. Its name is durable after :func:`sync` of its folder."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable where the file system knows how.

    Raises:
        OSError: the disk is full or fails.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
