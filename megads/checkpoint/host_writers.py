"""How many ranks of a host write their files at the same time. No torch.

A turn is a lock on a file in the temporary folder of the host. It ends with its process, so a rank that fails or is
killed passes it on, and ranks exchange nothing for it: it works in a thread, too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from megads.storage.file_lock import FileLock, take_lock

LOG = logging.getLogger("megads")

POLL_S = 0.02  # between two looks for a turn


class HostWriters:
    """The turns of the ranks of this host that write in one folder.

    Args:
        folder: that is written, the same on every rank.
        most: ranks of a host that write at the same time; 0: all.
    """

    def __init__(self, folder: Path, most: int):
        self.most = most
        # The temporary folder may be one that hosts share.
        name = hashlib.sha256(f"{socket.gethostname()}\n{os.path.abspath(folder)}".encode()).hexdigest()[:16]
        self._name = f"megads-{os.getuid()}-{name}"

    @contextmanager
    def turn(self, given_up: Callable[[], bool]) -> Iterator[None]:
        """Hold one of the turns for a block; wait for it until ``given_up`` says that it is not needed any more."""
        lock = self._wait(given_up) if self.most else None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _wait(self, given_up: Callable[[], bool]) -> FileLock | None:
        try:
            places = [Path(tempfile.gettempdir()) / f"{self._name}-{turn}.lock" for turn in range(self.most)]
            while not given_up():
                for place in places:
                    if lock := take_lock(place, temporary=True):
                        return lock
                time.sleep(POLL_S)
        except OSError as error:
            # Too many that write are slow, not wrong.
            LOG.warning(
                "SAVE_WRITERS=%d: %s: %s; all ranks of this host write at the same time; set TMPDIR to a folder on "
                "this host that can be written, or SAVE_WRITERS=0",
                self.most,
                error.filename or "TMPDIR",
                error.strerror,
            )
            self.most = 0
        return None
