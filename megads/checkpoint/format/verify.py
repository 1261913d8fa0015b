"""Read every byte of a checkpoint and say whether it is what was written; norms of its tensors. No torch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from megads.checkpoint.format.blocks import TensorFile
from megads.checkpoint.format.manifest import GENERATORS, Manifest, file_name, read_manifest
from megads.checkpoint.format.reader import Reader, run_in_threads
from megads.errors import CheckpointError

THREADS = 4
CHUNK = 1 << 20
"""Elements that are in memory together for norms."""


def verify(path: Path, progress: Callable[[int], None] | None = None) -> Manifest:
    """Check that the checkpoint ``path`` holds what was written, all of it, and return its manifest.

    Every byte of every file is read; every element of every tensor is in exactly one file.
    Memory does not depend on the checkpoint. ``progress`` is called by several threads, with how
    many bytes more were right.

    Raises:
        CheckpointError: the first damage that was found.
    """
    manifest = read_manifest(path)
    stop = threading.Event()

    def check(name: str) -> None:
        for count in _check_file(path, name, manifest):
            if stop.is_set():
                return
            if progress:
                progress(count)

    run_in_threads(check, manifest.files, THREADS, "megads-verify", stop)
    return manifest


def _check_file(path: Path, name: str, manifest: Manifest) -> Iterator[int]:
    """Check a file and yield how many bytes of it were right, header included."""
    with TensorFile(path / name, manifest.files[name].crc32) as file:
        _check_keys(file, name, manifest)
        yield file.start
        yield from file.check()


def _check_keys(file: TensorFile, name: str, manifest: Manifest) -> None:
    """Check that a file holds the tensors that the manifest lists, and no others."""
    wanted = {f"{kind}/{each}": count for each, _, count in manifest.contents(name) for kind in manifest.kinds}
    for parameter, state in manifest.states.items():
        if file_name(state.rank) == name:
            wanted |= state.counts(parameter)
    place = manifest.files[name].generators
    held = {
        key: count
        for key, (_, count, _) in file.entries.items()
        if not (place and key.startswith(f"{GENERATORS}{place}/"))
    }
    if held != wanted:
        key = min(set(held.items()) ^ set(wanted.items()))[0]
        raise CheckpointError(
            f"{file.path}: {key} has {held.get(key, 'no')} elements, the manifest says {wanted.get(key, 'no')}"
        )


def norms(reader: Reader, name: str) -> dict[str, float]:
    """Return the L2 norms of a tensor and its moments, padding rows too, in float64; CheckpointError if damaged."""
    squares = dict.fromkeys(reader.manifest.kinds, 0.0)
    for run in reader.manifest.runs[name]:
        for rank in run.ranks:
            file = reader.open(file_name(rank))
            for kind in squares:
                for at in range(0, run.count, CHUNK):
                    chunk = file.read(f"{kind}/{name}", at, min(CHUNK, run.count - at)).astype(np.float64)
                    squares[kind] += float(np.dot(chunk, chunk))
    return {kind: math.sqrt(square) for kind, square in squares.items()}
