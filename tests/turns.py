"""Tests that take turns when several workers run them (pytest-xdist).

A test marked ``alone`` measures time; while it runs, no other worker runs a test. All others run side by side.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(alone: bool, run: str) -> Iterator[None]:
    """Hold this worker back until its test may run.

    Args:
        alone: whether nothing else may run meanwhile.
        run: names the test run, the same in all its workers.
    """
    folder = Path(tempfile.gettempdir())
    with _open(folder / f"megads-{run}.gate") as gate, _open(folder / f"megads-{run}.turn") as place:
        # The gate makes it fair: whoever waits to be alone holds it, and nobody else starts.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(place, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def _open(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        yield handle
    finally:
        # Closing is not enough: a pool of ranks that the test forked has the file open too.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def remove_locks(run: str) -> None:
    """Remove what :func:`turn` left, when no worker is there any more."""
    for path in Path(tempfile.gettempdir()).glob(f"megads-{run}.*"):
        path.unlink(missing_ok=True)
