"""Files that a user names, and that appear whole or stay as they were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the block a file next to ``path`` to write; it takes its place at the end, and is removed after an error.

    A pipe or a device is written itself. The name keeps its ending, by which libraries choose a format.

    Raises:
        OSError: the folder cannot be written.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path))
    nearby = target.with_name(f".{target.stem[:100]}.{os.getpid()}{target.suffix}")
    try:
        yield nearby
        if target.exists():
            shutil.copymode(target, nearby)
        os.replace(nearby, target)
    except BaseException:
        with suppress(OSError):
            nearby.unlink(missing_ok=True)
        raise
