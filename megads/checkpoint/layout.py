"""Where checkpoints lie and which one is taken. Arithmetic on names and sizes, no torch.

A folder of checkpoints::

    checkpoints/
        iter_0000050/
            manifest.json                                      what the run was, where every tensor lies
            stage-00000-of-00002-tensor-00000-of-00001-00000.safetensors    of pipeline stage 0 of 2 and
            stage-00001-of-00002-tensor-00000-of-00001-00000.safetensors    tensor-parallel rank 0 of 1
            rng-pipe-00000-seq-00000-tensor-00000.safetensors    generator states at these coordinates
            rng-pipe-00001-seq-00000-tensor-00000.safetensors
        iter_0000100/
            ...

A stage and tensor-parallel rank writes its tensors in pieces of some GiB, numbered at the
end of the name. A parameter's weight and moments lie in one file; the manifest says in which.

A checkpoint is written under a name ending in ``.tmp`` and renamed when every byte is on
disk, so a folder named ``iter_*`` is complete unless something damaged it later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.errors import CheckpointError

FORMAT = 2
READABLE = (1, 2)
"""Format 1 had one stage and no word on which file holds a tensor, and kept the generator states among them."""
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


def shard_name(stage: int, stages: int, rank: int, degree: int, piece: int) -> str:
    """Return the name of a file of pipeline stage ``stage`` and tensor-parallel rank ``rank``."""
    return f"stage-{stage:05d}-of-{stages:05d}-tensor-{rank:05d}-of-{degree:05d}-{piece:05d}.safetensors"


def rng_name(coordinate: Mapping[str, int]) -> str:
    """Return the name of the file of the generator states at ``coordinate``, which data-parallel ranks share."""
    return (
        f"rng-pipe-{coordinate['pipe']:05d}-seq-{coordinate['seq']:05d}-tensor-{coordinate['tensor']:05d}.safetensors"
    )


def files_of(manifest: Mapping[str, Any], names: Iterable[str], rank: int) -> dict[str, list[str]]:
    """Return the files that hold the parameters ``names`` of tensor-parallel rank ``rank``, and which each holds.

    Parameters that the checkpoint does not know are left out. Of format 1 every file of the
    rank is named with every parameter.
    """
    if manifest["format"] == 1:
        mine = sorted(name for name in manifest["files"] if name.startswith(f"tensor-{rank:05d}-of-"))
        return {file: list(names) for file in mine}
    found: dict[str, list[str]] = {}
    for name in names:
        if name in manifest["tensors"]:
            found.setdefault(manifest["tensors"][name]["files"][rank], []).append(name)
    return found


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
    if version not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version reads {known}; resume with the version that wrote it"
        )
    for name, facts in files.items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else "no"
        if actual != facts["bytes"]:
            raise CheckpointError(f"{file}: {actual} bytes, the manifest says {facts['bytes']}")
    return manifest
