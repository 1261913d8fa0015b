"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megads.checkpoint.commit import sync_folder
from megads.checkpoint.layout import PART
from megads.errors import CheckpointError


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give a folder to fill, beside ``final``; it gets that name when all went well, and goes when it did not.

    Raises:
        CheckpointError: ``final`` is there already and not an empty folder, or can not be made.
    """
    part = final.with_name(final.name + PART)
    try:
        if final.exists() and not (final.is_dir() and not any(final.iterdir())):
            raise CheckpointError(f"{final}: is there already; give a new folder, or remove it")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"{part}: {error.strerror}; give a folder that you can write") from None
    try:
        yield part
        sync_folder(part)
        if final.exists():
            final.rmdir()
        os.replace(part, final)
        sync_folder(final.parent)
    except OSError as error:
        raise CheckpointError(f"{final}: {error.strerror}; free some space or give another folder") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
