"""One run at a time for each output, and one process for each part of it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from megads.errors import DataError

_WAIT_S = 3.0
"""What is left of a run that was killed may need a moment to end."""


@contextmanager
def outputs_held(prefixes: Sequence[Path]) -> Iterator[list[int]]:
    """Hold the token files of ``prefixes`` for this process; yields the descriptors, which children must close.

    Raises:
        DataError: another process makes one of them.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(held(prefix.parent / f".{prefix.name}.lock", prefix)) for prefix in prefixes]


@contextmanager
def held(path: Path, what: Path) -> Iterator[int]:
    """Hold the lock file ``path``, and remove it at the end.

    Raises:
        DataError: another process has it; ``what`` is what it is for.
    """
    handle = _lock(path, what)
    try:
        yield handle
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _lock(path: Path, what: Path) -> int:
    began = time.monotonic()
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if time.monotonic() - began > _WAIT_S:
                raise DataError(f"{what}: another process is making it; wait, or use another --output-prefix") from None
            time.sleep(0.05)
            continue
        except OSError:
            return handle  # a file system without locks: the user is on his own
        # The one before us removes the file while we wait for it to be ours.
        with suppress(OSError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)
