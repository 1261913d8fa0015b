"""Folders that appear whole or not at all: checkpoints, and what an export leaves. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from megads.checkpoint.format.folders import PART, REPLACED, retire
from megads.checkpoint.format.manifest import Manifest, write_manifest
from megads.errors import CheckpointError
from megads.storage.durable import sync
from megads.storage.file_lock import take_lock
from megads.storage.open_file import write_cure


def part_of(final: Path) -> Path:
    """Return the folder in which the checkpoint ``final`` is written."""
    return final.with_name(final.name + PART)


def commit(final: Path, manifest: Manifest, abandoned: Iterable[Path] = ()) -> list[Path]:
    """Make the checkpoint ``final`` visible, whose files are on disk in :func:`part_of` it.

    ``abandoned`` checkpoints are given up for it. They go first: whenever the process is killed, the newest that
    whoever resumes finds is not one of them next to ``final``. Their names now are returned, for
    :func:`megads.checkpoint.format.folders.sweep`.

    Raises:
        OSError: it could not be; a checkpoint of that name that was there before is there still.
        ValueError: the files do not hold every element of every tensor once, which is a bug.
    """
    manifest.check()
    part = part_of(final)
    write_manifest(part, manifest)
    sync(part)
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
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)
    return gone


@contextmanager
def new_checkpoint(final: Path) -> Iterator[Path]:
    """Make :func:`part_of` the checkpoint ``final``; what :func:`commit` has not renamed is removed in the end.

    Raises:
        CheckpointError: it already exists, another command is making it, or it cannot be written.
    """
    with _new_part(final, part_of(final), final.parent) as part:
        if os.path.lexists(final):
            raise CheckpointError(f"{final}: a checkpoint already exists; use another folder, or remove it")
        yield part


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Make a folder to write into, which becomes ``final`` in the end; it is removed after an error.

    Raises:
        CheckpointError: ``final`` already exists and is not an empty folder, another command is
            making it, or it cannot be written.
    """
    if not final.name:
        raise CheckpointError(f"{final}: already exists; use a new folder")
    # Nobody else uses this name: what has it was left by a killed command, and is removed.
    with _new_part(final, final.with_name(f".{final.name}.megads{PART}"), final) as part:
        if final.exists() and not (final.is_dir() and not any(final.iterdir())):
            raise CheckpointError(f"{final}: already exists; use a new folder, or remove it")
        yield part
        sync(part)
        if final.exists():
            final.rmdir()
        os.replace(part, final)
        sync(final.parent)


@contextmanager
def _new_part(final: Path, part: Path, given: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            stack.enter_context(_parents_of(part))
            lock = take_lock(part.with_name(f"{part.name}.lock"), temporary=True)
            if lock is None:
                raise CheckpointError(f"{part}: another command is writing it; wait for it, or use another folder")
            stack.enter_context(lock)
            stack.callback(shutil.rmtree, part, ignore_errors=True)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
        except OSError as error:
            raise CheckpointError(f"{given}: {error.strerror}; use a folder that you can write") from None
        try:
            yield part
        except OSError as error:
            raise CheckpointError(f"{final}: {error.strerror}; {write_cure(error, 'use another folder')}") from None


@contextmanager
def _parents_of(path: Path) -> Iterator[None]:
    """Make the folders above ``path``; those that were not there, and are empty in the end, are removed."""
    folder = path.parent
    new = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            os.stat(os.path.join(folder, ""))  # raises what is wrong with a file, or with links in a circle
        yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()
