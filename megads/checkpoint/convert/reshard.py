"""Reshard a checkpoint for another layout, so that each of its ranks finds in one file what it owns. No torch.

Nothing needs this: a run of any layout reads what any other wrote. It is for many ranks that
would open many files, and for taking the weights along without the optimizer. Numbers are
read, checked and written a chunk at a time, so memory depends neither on the model nor on the
layouts.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.new_layout import Share, grid_of, shares_of
from megads.checkpoint.format.atomic_folder import parents_of
from megads.checkpoint.format.blocks import TYPES, Entry, write_file
from megads.checkpoint.format.commit import commit, only_writer, part_of
from megads.checkpoint.format.folders import CheckpointRef, candidates, checkpoint_name, checkpoints_in, iteration_of
from megads.checkpoint.format.manifest import MANIFEST, Manifest, file_name, read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.runs import FileFacts, tell_of
from megads.checkpoint.format.whole_state import WholeParamState
from megads.checkpoint.resume.other_programs import foreign_kind
from megads.config.schema import RunConfig
from megads.errors import CheckpointError

CHUNK = 1 << 22
"""Numbers that a worker reads and writes together."""

Tell = Callable[[int, int], None]
"""Is told how many bytes are written, of how many."""

_PLACES = "a run, a folder of checkpoints or a checkpoint"


@dataclass(frozen=True)
class Reshaped:
    """What :func:`reshape` made."""

    path: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()


def source_of(place: Path, step: int | None = None) -> CheckpointRef:
    """Return the checkpoint that a user means by ``place``, see ``megads.checkpoint.format.folders.checkpoints_in``.

    Args:
        place: a run, a folder of checkpoints or a checkpoint.
        step: the iteration that is wanted; None: the newest that is whole.

    Raises:
        CheckpointError: there is none, or it is damaged. One that was named is not replaced by another.
    """
    try:
        place.stat()
        found, kind = checkpoints_in(place), foreign_kind(place)
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror}; pass {_PLACES}") from None
    if kind and not (found and (found[-1] / MANIFEST).exists()):
        raise CheckpointError(f"{place}: {kind}")
    if not found and iteration_of(place) >= 0:
        read_manifest(place)
    if not found:
        raise CheckpointError(f"{place}: holds no checkpoint; pass {_PLACES}")
    if step is None and found != [place]:
        return next(candidates(found))
    path = next((each for each in found if step in (None, iteration_of(each))), None)
    if path is None:
        there = ", ".join(str(iteration_of(each)) for each in found[-5:])
        raise CheckpointError(f"{place}: no checkpoint of iteration {step}; the newest are {there}")
    return CheckpointRef(path, read_manifest(path))


def reshape(
    source: Path,
    manifest: Manifest,
    folder: Path,
    run: RunConfig,
    *,
    weights_only: bool = False,
    workers: int = 1,
    tell: Tell | None = None,
) -> Reshaped:
    """Reshard the checkpoint ``source`` into ``folder``, in the layout of ``run``.

    Weights, moments, scalars, progress and settings are the same. It becomes visible when all of it is on disk.

    Args:
        source: the checkpoint.
        manifest: of it.
        folder: of checkpoints; made if it is not there.
        run: see :func:`target_of`.
        weights_only: skip the optimizer.
        workers: files that are written at the same time.
        tell: the progress.

    Raises:
        CheckpointError: the source is damaged, there is a checkpoint of this iteration already,
            or the folder cannot be written. Nothing is left then.
    """
    final = folder / checkpoint_name(manifest.iteration)
    kinds = ("weight",) if weights_only else manifest.kinds
    plan = shares_of(run)
    job = _Job(source, manifest, part_of(final), kinds, workers, tell)
    job.total = 4 * len(kinds) * sum(share.count for shares in plan for share in shares)
    if not weights_only:
        job.total += sum(_bytes_of(kept) for kept in manifest.states.values())
        job.homes = _homes(manifest, [rank for rank, shares in enumerate(plan) if shares])
    with _making(final, job.total):
        files = job.run([_File(rank, shares) for rank, shares in enumerate(plan) if shares])
        grid = grid_of(run)
        made = replace(
            manifest,
            kinds=kinds,
            layout={
                **{axis: grid.degree(axis) for axis in ("pipe", "data", "seq", "tensor")},
                "zero_stage": run.parallel.zero_stage,
            },
            scalars={} if weights_only else manifest.scalars,
            about={**manifest.about, "reshaped_from": dict(manifest.layout)},
            states={name: replace(manifest.states[name], rank=rank) for name, rank in job.homes.items()},
        )
        made = tell_of(made, files)
        commit(final, made)
    return Reshaped(final, made, tuple(_notes(manifest, weights_only)))


def _bytes_of(kept: WholeParamState) -> int:
    return sum(TYPES[dtype].itemsize * math.prod(shape) for dtype, shape in kept.tensors.values())


def _homes(manifest: Manifest, ranks: Sequence[int]) -> dict[str, int]:
    """Return which of ``ranks`` writes the state of each parameter: in turn; any rank finds it, wherever it is."""
    return {name: ranks[i % len(ranks)] for i, name in enumerate(manifest.states)}


def _notes(manifest: Manifest, weights_only: bool) -> Iterator[str]:
    if weights_only and manifest.iteration:
        yield "weights only: start a run from it with FINETUNE=1 or NO_LOAD_OPTIM=1"


@contextmanager
def _making(final: Path, size: int) -> Iterator[None]:
    """Make the folder in which ``final`` is written, and leave nothing of it if that fails."""
    folder, part = final.parent, part_of(final)
    if os.path.lexists(folder / MANIFEST):
        raise CheckpointError(f"{folder}: is a checkpoint; pass the folder in which {final.name} is to be made")
    try:
        with parents_of(part), only_writer(part), ExitStack() as stack:
            if os.path.lexists(final):
                raise CheckpointError(f"{final}: a checkpoint already exists; use another folder, or remove it")
            stack.callback(shutil.rmtree, part, ignore_errors=True)
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            free = shutil.disk_usage(part).free
            if free < size:
                raise CheckpointError(
                    f"{folder}: {free / 1e9:.4g} GB free, {size / 1e9:.4g} GB needed; free some space "
                    "or use another folder"
                )
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space, or use another folder" if full else "use a folder that you can write"
        raise CheckpointError(f"{folder}: {error.strerror}; {advice}") from None


@dataclass(frozen=True)
class _File:
    """What a rank's file gets: runs of parameters."""

    rank: int
    shares: Sequence[Share]


@dataclass
class _Job:
    """Writes the files, several at a time."""

    source: Path
    manifest: Manifest
    part: Path
    kinds: Sequence[str]
    workers: int
    tell: Tell | None
    total: int = 0
    done: int = 0
    homes: dict[str, int] = field(default_factory=dict)  # parameter -> the rank whose file gets its state
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    readers: SimpleQueue[Reader] = field(default_factory=SimpleQueue)

    def run(self, files: Sequence[_File]) -> dict[int, FileFacts]:
        """Write the files and return what they hold; one without numbers is not made."""
        # Files are read and written, and their checksums made, while Python's lock is free: threads are enough.
        workers = max(1, min(self.workers, len(files)))
        for _ in range(workers):
            # Without its optimizer's state a checkpoint's weights are those for use.
            in_use = tuple(self.kinds) != self.manifest.kinds
            self.readers.put(Reader(self.source, self.manifest, threads=1, in_use=in_use))
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(self._write, file) for file in files]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                failed = [future for future in futures if future.done() and future.exception()]
                return dict(future.result() for future in failed or futures)
            except BaseException:
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _write(self, file: _File) -> tuple[int, FileFacts]:
        shares = file.shares
        reader = self.readers.get()
        try:
            entries = [
                Entry(f"{kind}/{share.name}", np.dtype("<f4"), share.count, partial(self._read, reader, kind, share))
                for kind in self.kinds
                for share in shares
            ]
            for name, rank in self.homes.items():
                entries += self._state(reader, name) if rank == file.rank else ()
            pieces = [(share.name, share.first, share.count) for share in shares]
            size, crc = write_file(self.part / file_name(file.rank), entries)
        finally:
            reader.close()  # a thousand files of the source may be more than a process may have open
            self.readers.put(reader)
        return file.rank, FileFacts(size, crc, shares[0].cut.rank, tuple(pieces))

    def _state(self, reader: Reader, name: str) -> Iterator[Entry]:
        kept = self.manifest.states[name]
        for key, count in kept.counts(name).items():
            dtype = TYPES[kept.tensors[key.rpartition("/")[2]][0]]
            yield Entry(key, dtype, count, partial(self._copy, reader, kept.rank, key, count))

    def _copy(self, reader: Reader, rank: int, key: str, count: int) -> Iterator[NDArray[np.generic]]:
        for at in range(0, count, CHUNK):
            chunk = reader.open(file_name(rank)).read(key, at, min(CHUNK, count - at))
            yield chunk
            self._tell(chunk.nbytes)

    def _tell(self, num_bytes: int) -> None:
        if self.tell is not None:
            with self.lock:
                self.done += num_bytes
                self.tell(self.done, self.total)

    def _read(self, reader: Reader, kind: str, share: Share) -> Iterator[NDArray[np.float32]]:
        for at in range(0, share.count, CHUNK):
            if self.stopped.is_set():
                raise CheckpointError(f"{self.part}: given up")
            count = min(CHUNK, share.count - at)
            yield reader.read(share.name, kind, share.cut, share.first + at, count)
            self._tell(4 * count)
