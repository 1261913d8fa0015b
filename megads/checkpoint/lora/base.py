"""The base of a checkpoint of adapters: where it is, and whether it is still what the adapters were trained with.

A run with ``LORA_RANK`` saves its adapters and their optimizer state, and names the checkpoint whose weights it froze:
a save of a 7B model with adapters of rank 8 has 0.24 GB in place of 80. Without the base such a checkpoint is nothing,
so the base is taken from the place that was noted, or from ``LOAD``, and only with the manifest that it had. A manifest
holds the checksums of all its files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.checkpoint.format.folders import CheckpointRef, checkpoints_in
from megads.checkpoint.format.manifest import MANIFEST, MAX_BYTES, Manifest, read_manifest
from megads.errors import CheckpointError
from megads.storage.reading import read_bytes

NOTE = "lora_base"
"""Key of ``about`` under which a checkpoint of adapters describes its base."""


def is_adapters(manifest: Manifest) -> bool:
    """Return whether a checkpoint holds adapters, and not the weights that they change."""
    return bool(manifest.model.get("lora_rank"))


def note_of(base: CheckpointRef) -> dict[str, Any]:
    """Return what a checkpoint of adapters says of its base."""
    return {
        "path": os.path.realpath(base.path),
        "iteration": base.manifest.iteration,
        "fingerprint": fingerprint(base.path),
    }


def fingerprint(path: Path) -> str:
    """Return a number of the content of the checkpoint ``path``, in hexadecimal digits.

    Raises:
        CheckpointError: its manifest cannot be read.
    """
    try:
        return hashlib.blake2b(read_bytes(path / MANIFEST, MAX_BYTES), digest_size=8).hexdigest()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / MANIFEST}: {getattr(error, 'strerror', None) or error}") from None


def base_of(path: Path, manifest: Manifest, load: str = "") -> CheckpointRef:
    """Return the base of ``path``, a checkpoint of adapters; ``load``: another place where it may be.

    Raises:
        CheckpointError: it is not there, or is not what it was.
    """
    note: Mapping[str, Any] = manifest.about.get(NOTE, {})
    noted, wanted = str(note.get("path", "")), str(note.get("fingerprint", ""))
    if not noted or not wanted:
        raise CheckpointError(f"{path}: holds adapters and does not name the checkpoint that they belong to")
    changed = ""
    for place in (*_checkpoints_of(load), Path(noted)):
        if not (place / MANIFEST).is_file():
            continue
        if (found := fingerprint(place)) == wanted:
            return CheckpointRef(place, read_manifest(place))
        changed = changed or f"{place} has another content than when the adapters were trained ({found}, then {wanted})"
    what = changed or f"{noted} is not there"
    raise CheckpointError(f"{path}: its base, {what}; restore it, or name a copy (LOAD, --base)")


def _checkpoints_of(load: str) -> Iterator[Path]:
    """Yield the checkpoints in ``load``, the newest first."""
    place = Path(load)
    if not load or not place.exists():
        return
    yield from reversed(checkpoints_in(place) or [place])
