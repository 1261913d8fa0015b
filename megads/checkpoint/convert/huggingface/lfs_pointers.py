"""Files of Git LFS that were not fetched. No torch."""

from __future__ import annotations

from pathlib import Path

from megads.errors import CheckpointError
from megads.storage.open_file import open_binary

_START = b"version https://git-lfs"


def refuse_pointer(path: Path) -> None:
    """Refuse a file that only says where its content is to be had.

    Raises:
        CheckpointError: it is one.
        OSError: it cannot be read.
    """
    with open_binary(path) as file:
        if file.read(len(_START)) == _START:
            raise CheckpointError(f"{path}: is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`")
