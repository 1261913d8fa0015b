"""Where checkpoints lie and which one is taken. Arithmetic on names and sizes, no torch.

A folder of checkpoints::

    checkpoints/
        iter_0000050/
            manifest.json                        what the run was, every tensor and every file's size
            tensor-00000-of-00002-00000.safetensors    of tensor-parallel rank 0 of 2, in pieces of some GiB
            tensor-00001-of-00002-00000.safetensors
        iter_0000100/
            ...

A checkpoint is written under a name ending in ``.tmp`` and renamed when every byte is on
disk, so a folder named ``iter_*`` is complete unless something damaged it later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.errors import CheckpointError

FORMAT = 1
NAME = re.compile(r"^iter_(\d{7,})$")


@dataclass(frozen=True)
class Found:
    """The checkpoint that a run resumes from, and the newer ones that could not be used."""

    path: Path
    manifest: dict[str, Any]
    broken: tuple[str, ...] = ()


def checkpoint_name(iteration: int) -> str:
    """Return the folder name of the checkpoint after ``iteration`` steps."""
    return f"iter_{iteration:07d}"


def shard_name(rank: int, degree: int, piece: int) -> str:
    """Return the name of a file of tensor-parallel rank ``rank``."""
    return f"tensor-{rank:05d}-of-{degree:05d}-{piece:05d}.safetensors"


def shards_of(manifest: Mapping[str, Any], rank: int, degree: int) -> list[str]:
    """Return the names of all files of tensor-parallel rank ``rank``, in order."""
    return sorted(name for name in manifest["files"] if name.startswith(f"tensor-{rank:05d}-of-{degree:05d}-"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in ``folder``, oldest first; none if it does not exist.

    Raises:
        CheckpointError: the folder can not be read.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}; give a RUN_DIR or CKPT_DIR that you can read") from None
    found = [(int(m[1]), folder / name) for name in names if (m := NAME.match(name))]
    return [path for _, path in sorted(found)]


def remove_unfinished(folder: Path) -> None:
    """Remove what a save left that was killed half-way."""
    if folder.is_dir():
        for path in folder.glob("iter_*.tmp"):
            shutil.rmtree(path)


def find_latest(folder: Path) -> Found | None:
    """Return the newest sound checkpoint in ``folder``, or None when it holds none.

    Raises:
        CheckpointError: there are checkpoints, but every one is damaged. A run never
            starts from scratch because its checkpoints could not be read.
    """
    broken: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return Found(path, read_manifest(path), tuple(broken))
        except CheckpointError as error:
            broken.append(str(error))
    if broken:
        raise CheckpointError(
            f"{folder}: no checkpoint can be read ({broken[0]}); restore one, or use another RUN_NAME or RUN_DIR "
            "for a new run"
        )
    return None


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the checkpoint ``path`` after checking the size of its files.

    Raises:
        CheckpointError: the manifest or a file is missing or has another size.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf8"))
        files = dict(manifest["files"])
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: not a readable manifest ({error})") from None
    if version != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {version}, this version reads {FORMAT}")
    for name, facts in files.items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else "no"
        if actual != facts["bytes"]:
            raise CheckpointError(f"{file}: {actual} bytes, the manifest says {facts['bytes']}")
    return manifest
