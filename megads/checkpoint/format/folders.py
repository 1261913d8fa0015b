"""Where checkpoints lie, which one is taken, and which are removed. Names and sizes only, no torch.

A folder of checkpoints::

    checkpoints/
        iter_0000050/
            manifest.json                what the run was, where every tensor lies; see ``manifest``
            rank-00000.safetensors       what rank 0 held of weights and moments; see ``blocks``
            rank-00001.safetensors
        iter_0000100/
            ...

A checkpoint is written under a name ending in ``.tmp`` and renamed when every byte is on
disk, so a folder named ``iter_*`` is complete unless something damaged it later.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.checkpoint.format.manifest import MANIFEST, NAME, Manifest, is_complete, read_manifest
from megads.errors import CheckpointError

LOG = logging.getLogger("megads")

PART = ".tmp"
REPLACED = ".old.tmp"
GONE = ".gone.tmp"
"""Ending of a checkpoint that is being removed: no name of one that is being written or replaced."""
ASIDE = ".damaged"
"""Ending of a checkpoint that was skipped when its run resumed from an older one."""


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint that a run can resume from, and the newer ones that could not be used."""

    path: Path
    manifest: Manifest
    broken: tuple[str, ...] = ()


def checkpoint_name(iteration: int) -> str:
    """Return the folder name of the checkpoint after ``iteration`` steps."""
    return f"iter_{iteration:07d}"


def iteration_of(path: Path) -> int:
    """Return the iteration in a checkpoint's name, -1 if it has none."""
    match = NAME.match(path.name)
    return int(match[1]) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder``, oldest first; none if it does not exist, CheckpointError if unreadable."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{folder}: {error.strerror}; set RUN_DIR or CKPT_DIR to a folder that you can read"
        ) from None
    return sorted((folder / name for name in names if NAME.match(name)), key=iteration_of)


def checkpoints_in(place: Path) -> list[Path]:
    """Return the checkpoints, oldest first, of a checkpoint, a folder or a run; CheckpointError if unreadable."""
    if os.path.exists(place / MANIFEST) or (NAME.match(place.name) and place.is_dir()):
        return [place]
    return list_checkpoints(place) or list_checkpoints(place / "checkpoints")


def list_unfinished(folder: Path) -> list[Path]:
    """Return what saves left in ``folder`` that were killed half-way, or are being written now."""
    return sorted(folder.glob(f"iter_*{PART}"))


def remove_unfinished(folder: Path) -> None:
    """Remove what killed saves left, and bring back what they were about to replace; CheckpointError if that fails."""
    try:
        for path in folder.glob(f"iter_*{REPLACED}"):
            whole = path.with_name(path.name.removesuffix(REPLACED))
            if not whole.exists():
                os.replace(path, whole)
        # The second are locks of imports that were killed.
        for path in (*list_unfinished(folder), *folder.glob(f"iter_*{PART}.lock")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: {error.strerror}; remove {folder}/iter_*{PART} or use another CKPT_DIR"
        ) from None


def candidates(found: list[Path]) -> Iterator[CheckpointRef]:
    """Yield the checkpoints of ``found`` whose manifest and sizes are right, the newest first, each with what was not.

    Raises:
        CheckpointError: there are checkpoints, but every one is damaged. A run never
            starts from scratch because its checkpoints could not be read.
    """
    broken: list[str] = []
    for path in reversed(found):
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            broken.append(str(error))
            continue
        yield CheckpointRef(path, manifest, tuple(broken))
    if broken and len(broken) == len(found):
        raise CheckpointError(
            f"{found[0].parent}: no checkpoint can be read ({broken[0]}); restore one, or use another RUN_NAME or "
            "RUN_DIR for a new run"
        )


def surplus(folder: Path, newest: Path, keep: int, keep_every: int, pinned: int = 0) -> list[Path]:
    """Return the checkpoints in ``folder`` that go now that ``newest`` is complete.

    The ``keep`` newest ones stay (0: all), those of multiples of iteration ``keep_every`` (0: none), and that of
    iteration ``pinned`` (0: none). A name proves nothing: a folder that is not a complete checkpoint is none of the
    ``keep``. It stays as long as it is newer than the oldest of them.
    """
    past = [path for path in list_checkpoints(folder) if iteration_of(path) <= iteration_of(newest)]
    kept = 0
    while past and kept < keep:
        path = past.pop()
        kept += path.name == newest.name or is_complete(path)
    old = past if keep else []
    old = [path for path in old if iteration_of(path) != pinned or not pinned]
    return [path for path in old if not keep_every or iteration_of(path) % keep_every]


def later(folder: Path, newest: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` of later iterations than ``newest``.

    After a run went back they belong to the future that it gave up: whoever resumes must not find it again.
    """
    return [path for path in list_checkpoints(folder) if iteration_of(path) > iteration_of(newest)]


def retire(paths: Iterable[Path]) -> list[Path]:
    """Make checkpoints invisible and return what they are called now, for :func:`sweep`.

    A checkpoint is never half there under its own name, whenever the process is killed. What
    cannot be renamed is left and reported: a run does not end for it.
    """
    gone = []
    for path in paths:
        target = path.with_name(path.name + GONE)
        try:
            shutil.rmtree(target, ignore_errors=True)
            os.replace(path, target)
        except OSError as error:
            LOG.warning("checkpoint %s could not be removed: %s", path, error.strerror)
            continue
        gone.append(target)
    return gone


def sweep(gone: Iterable[Path]) -> None:
    """Remove what :func:`retire` gave; what cannot be removed is reported, and left to the next start."""
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            LOG.warning("%s, an old checkpoint, could not be removed", path)
