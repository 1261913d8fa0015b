"""Which checkpoints go once a new one is complete, and how they go. No torch."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from megads.checkpoint.format.folders import PART, iteration_of, list_checkpoints

LOG = logging.getLogger("megads")

GONE = ".gone" + PART
"""Ending of a checkpoint that is being removed: no name of one that is being written or replaced."""


def surplus(folder: Path, newest: Path, keep: int, keep_every: int) -> list[Path]:
    """Return the checkpoints in ``folder`` that go now that ``newest`` is complete.

    Args:
        folder: of checkpoints.
        newest: the one that was just completed.
        keep: so many newest ones stay; 0: all.
        keep_every: multiples of this iteration stay forever; 0: none.
    """
    past = [path for path in list_checkpoints(folder) if iteration_of(path) <= iteration_of(newest)]
    old = past[:-keep] if keep else []
    return [path for path in old if not keep_every or iteration_of(path) % keep_every]


def later(folder: Path, newest: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` of later iterations than ``newest``.

    After a run went back they belong to the future that it gave up: whoever resumes must not find it again.
    """
    return [path for path in list_checkpoints(folder) if iteration_of(path) > iteration_of(newest)]


def retire(paths: Iterable[Path]) -> list[Path]:
    """Make checkpoints invisible and return what they are called now, for :func:`sweep`.

    A checkpoint is never half there under its own name, whenever the process is killed. What
    cannot be renamed is left and named: a run does not end for it.
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
    """Remove what :func:`retire` gave; what cannot be removed is named, and left to the next start."""
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            LOG.warning("%s, an old checkpoint, could not be removed", path)
