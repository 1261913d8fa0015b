"""The moment in which a checkpoint becomes visible. No torch."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from megads.checkpoint.layout import PART, REPLACED
from megads.checkpoint.manifest import Manifest, write_manifest


def part_of(final: Path) -> Path:
    """Return the folder in which the checkpoint ``final`` is written."""
    return final.with_name(final.name + PART)


def commit(final: Path, manifest: Manifest) -> None:
    """Make the checkpoint ``final`` visible, whose files are on disk in :func:`part_of` it.

    Raises:
        OSError: it could not be; a checkpoint of that name that was there before is there still.
        ValueError: the files do not hold every number of every tensor once, which is a bug.
    """
    manifest.check()
    part = part_of(final)
    write_manifest(part, manifest)
    sync_folder(part)
    old = final.with_name(final.name + REPLACED)
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    try:
        os.replace(part, final)
    except OSError:
        if old.exists():
            os.replace(old, final)
        raise
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make names in ``folder`` durable, where the file system knows how."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
