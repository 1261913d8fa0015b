"""Whether a file of ``torch.save`` is what was written: torch never compares the CRC-32s of its zip. No torch."""

from __future__ import annotations

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from megads.errors import CheckpointError
from megads.storage.open_file import open_binary

_THREADS = 4
_MOST_PACKED = 1 << 28  # bytes of a compressed member; tensors are not compressed
_PIECE = 1 << 22  # bytes read at a time
_verified: set[tuple[int, ...]] = set()  # files that this process has read: device, inode, bytes, time


def is_zip(path: Path) -> bool:
    """Return whether a file begins as a zip, which is what torch.save writes since 1.6; OSError as it may come."""
    with open_binary(path) as file:
        return file.read(4) == b"PK\x03\x04"


def verify_zip(path: Path) -> None:
    """Read every member of a zip and compare its CRC-32; once in a process, unless the file changes.

    Raises:
        CheckpointError: one is not what was written; the line names it.
        OSError: the file cannot be read.
    """
    found = os.stat(path)
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if key in _verified:
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.file_size]
            # torch can be told to leave the sums out; then all of them are 0.
            if any(member.CRC for member in members):
                with ThreadPoolExecutor(_THREADS) as pool:
                    parts = [members[first::_THREADS] for first in range(_THREADS)]
                    for name in pool.map(lambda part: _first_damaged(path, part), parts):
                        if name:
                            raise CheckpointError(
                                f"{path}: member {name} changed since it was written, its CRC-32 differs; "
                                "restore a copy"
                            )
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"{path}: not a readable file of torch.save, its zip is damaged ({error!s:.60})"
        ) from None
    _verified.add(key)


def _first_damaged(path: Path, members: list[zipfile.ZipInfo]) -> str:
    """Return the first damaged member, empty if there is none.

    The archive is opened again: threads that share one disturb each other on Python 3.13.0.
    """
    with zipfile.ZipFile(path) as archive:
        return next(filter(None, (_damaged(archive, member) for member in members)), "")


def _damaged(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    """Return the name of a member that is not what was written, empty if it is."""
    if member.compress_type != zipfile.ZIP_STORED and member.file_size > _MOST_PACKED:
        return member.filename
    try:
        with archive.open(member) as stream:
            done = 0
            while piece := stream.read(_PIECE):
                done += len(piece)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError):
        return member.filename
    return "" if done == member.file_size else member.filename
