"""The moment in which a checkpoint becomes visible. No torch."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megads.checkpoint.format.folders import PART, REPLACED
from megads.checkpoint.format.manifest import Manifest, write_manifest
from megads.checkpoint.format.retention import retire
from megads.errors import CheckpointError


def part_of(final: Path) -> Path:
    """Return the folder in which the checkpoint ``final`` is written."""
    return final.with_name(final.name + PART)


def commit(final: Path, manifest: Manifest, abandoned: Iterable[Path] = ()) -> list[Path]:
    """Make the checkpoint ``final`` visible, whose files are on disk in :func:`part_of` it.

    Args:
        final: its path.
        manifest: of it.
        abandoned: checkpoints that are given up for it. They go first: whenever the process is
            killed, the newest that whoever resumes finds is not one of them next to ``final``.

    Returns:
        What the abandoned ones are called now, for :func:`megads.checkpoint.format.retention.sweep`.

    Raises:
        OSError: it could not be; a checkpoint of that name that was there before is there still.
        ValueError: the files do not hold every number of every tensor once, which is a bug.
    """
    manifest.check()
    part = part_of(final)
    write_manifest(part, manifest)
    sync_folder(part)
    gone = retire(abandoned)
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
    return gone


@contextmanager
def only_writer(part: Path) -> Iterator[None]:
    """Keep a second command from writing the folder ``part``; where files cannot be locked, nothing does.

    Raises:
        CheckpointError: another command is writing it.
        OSError: there can be no file next to ``part``.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    lock = part.with_name(part.name + ".lock")
    handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed it meanwhile, and a third command made it again.
            is_ours = os.path.samestat(os.fstat(handle), os.stat(lock))
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except OSError:
            is_ours = True
        if not is_ours:
            raise CheckpointError(f"{part}: another command is writing it; wait for it, or use another folder")
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink()
    finally:
        os.close(handle)


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
