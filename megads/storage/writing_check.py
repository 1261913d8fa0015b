"""Whether a folder takes files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_BYTES = 1 << 16


def is_writable(folder: Path) -> bool:
    """Return whether a file can be written, flushed and removed in ``folder``."""
    probe = folder / f".megads-check-{os.getpid()}"
    try:
        with open(probe, "wb") as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True
