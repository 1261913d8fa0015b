"""A lock that ends with the process that holds it. Where a file system has no locks, everybody gets it."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.05


def try_lock(handle: int) -> bool | None:
    """Lock an open file without waiting: True it is locked, False another holds it, None there are no locks here.

    The lock belongs to the open file: it is released when the last descriptor of it is closed, those of child
    processes and of a program started with ``exec`` included.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


class FileLock:
    """A lock that :func:`take_lock` got; release it, or use it in a ``with`` block.

    Attributes:
        handle: the descriptor. Children that outlive the block must close it.
    """

    def __init__(self, handle: int, temporary: Path | None):
        self.handle, self._temporary = handle, temporary

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Remove the lock file if it is temporary, and let the next one have the lock."""
        if self._temporary:
            with suppress(OSError):
                self._temporary.unlink()
        os.close(self.handle)


def take_lock(path: Path, *, wait_s: float = 0.0, temporary: bool = False, is_folder: bool = False) -> FileLock | None:
    """Lock a file, which is created unless it exists, or a folder; return None when another process holds it.

    On some parallel file systems locks do not exist, or hold on one host only: then the lock is always granted.

    Args:
        path: of the lock file or of the folder.
        wait_s: how long to wait for the holder, ``math.inf`` for as long as it takes.
        temporary: the lock file is removed on release.
        is_folder: ``path`` is a folder, which must exist.

    Raises:
        OSError: the file cannot be created, the folder cannot be opened.
    """
    until = time.monotonic() + wait_s
    flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT
    while True:
        handle = os.open(path, flags, 0o666)
        if (locked := try_lock(handle)) is None:
            return FileLock(handle, path if temporary else None)
        # The holder before may have removed the file, and a third process has created it again.
        with suppress(OSError):
            if locked and os.path.samestat(os.fstat(handle), os.stat(path)):
                return FileLock(handle, path if temporary else None)
        os.close(handle)
        if time.monotonic() >= until:
            return None
        time.sleep(_POLL_S)
