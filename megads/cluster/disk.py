"""What a folder's disk has left, and how fast it takes bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from megads.errors import LaunchError
from megads.storage.open_file import write_cure

PIECE = 4 * 2**20


@dataclass(frozen=True)
class Disk:
    """Bytes free, and bytes a second that reached the disk; ``write_per_s`` is 0 where nothing was written."""

    free: int
    write_per_s: float


def probe_disk(folder: Path, num_bytes: int) -> Disk:
    """Write, flush, read back and remove ``num_bytes`` in ``folder``, or in the nearest parent that exists.

    Raises:
        LaunchError: the folder cannot be written, its disk is full, or other bytes come back.
    """
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())
    piece = os.urandom(min(PIECE, max(num_bytes, 1)))
    name = ""
    try:
        free = shutil.disk_usage(place).free
        started = time.perf_counter()
        handle, name = tempfile.mkstemp(prefix=".megads-probe-", dir=place)
        with os.fdopen(handle, "w+b") as file:
            for _ in range(max(1, num_bytes // len(piece))):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - started
            written = file.tell()
            file.seek(0)
            same = all(chunk == piece for chunk in iter(lambda: file.read(len(piece)), b""))
    except OSError as error:
        raise LaunchError(
            f"{place}: {error.strerror}; {write_cure(error, 'use another RUN_DIR that every host can write')}"
        ) from None
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
    if not same:
        raise LaunchError(f"{place}: what was written does not come back the same; report it to the site's support")
    return Disk(free, written / max(seconds, 1e-9))
