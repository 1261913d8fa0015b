"""A folder that appears whole or not at all: what an export leaves. No torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from megads.checkpoint.format.commit import only_writer, sync_folder
from megads.checkpoint.format.folders import PART
from megads.errors import CheckpointError
from megads.storage.open_file import write_cure


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes ``final`` if all goes well and goes away if not.

    Raises:
        CheckpointError: ``final`` already exists and not an empty folder, cannot be made, or
            another command is making it.
    """
    if not final.name:
        raise CheckpointError(f"{final}: already exists; use a new folder")
    # A name that is nobody's: what is there is of a command that was killed, and goes.
    part = final.with_name(f".{final.name}.megads{PART}")
    with ExitStack() as stack:
        try:
            stack.enter_context(parents_of(part))
            stack.enter_context(only_writer(part))
            if final.exists() and not (final.is_dir() and not any(final.iterdir())):
                raise CheckpointError(f"{final}: already exists; use a new folder, or remove it")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
        except OSError as error:
            raise CheckpointError(f"{final}: {error.strerror}; use a folder that you can write") from None
        try:
            yield part
            sync_folder(part)
            if final.exists():
                final.rmdir()
            os.replace(part, final)
            sync_folder(final.parent)
        except OSError as error:
            raise CheckpointError(f"{final}: {error.strerror}; {write_cure(error, 'use another folder')}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def parents_of(path: Path) -> Iterator[None]:
    """Make the folders above ``path``; those that were not there, and are empty in the end, go again.

    Raises:
        OSError: they cannot be made.
    """
    folder = path.parent
    new = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            os.stat(os.path.join(folder, ""))  # a file, or a link in a circle, is told as such
        yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()
