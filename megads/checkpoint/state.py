"""Write a run's state to disk and read it back, bit for bit.

Every parameter is stored in float32 with its moments, joined over the data-parallel and the
sequence-parallel ranks, by the pipeline stage that owns it, split over the tensor-parallel
ranks. Its global shape, the way it is split and the files it lies in are in the manifest,
so that another number of stages, sequence or data-parallel ranks reads what it needs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megads.checkpoint.layout import (
    FORMAT,
    Found,
    checkpoint_name,
    files_of,
    find_latest,
    list_checkpoints,
    rng_name,
    shard_name,
)
from megads.checkpoint.match import check_layout
from megads.dist.groups import Groups
from megads.errors import CheckpointError

LOG = logging.getLogger("megads")

PIECE_BYTES = 2 * 2**30

Files = dict[str, dict[str, int]]
"""File name -> its ``bytes`` and ``crc32``."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; with the settings, this decides every later step."""

    iteration: int = 0
    consumed_samples: int = 0
    scheduled_samples: int = 0  # consumed_samples less those of skipped steps
    skipped_iterations: int = 0
    nan_iterations: int = 0
    first_valid_loss: float | None = None
    last_valid_loss: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    owes_validation: bool = False  # the one after this iteration was given up for a stop request

    @staticmethod
    def read(manifest: Mapping[str, Any]) -> Progress:
        """Return what a manifest says.

        Raises:
            CheckpointError: another version of megads wrote other fields.
        """
        try:
            return Progress(**manifest["progress"])
        except TypeError as error:
            raise CheckpointError(f"the checkpoint's progress can not be read ({error})") from None


@dataclass(frozen=True)
class Snapshot:
    """Everything that goes into a checkpoint on one rank.

    ``parameters`` yields (name, shard, tensors) of those that this rank's stage owns; it is
    consumed on every rank, because reading a parameter is collective, but only the first of
    the ranks that hold the same keeps and writes what it yields.
    """

    progress: Progress
    parameters: Iterable[tuple[str, Any, Mapping[str, Tensor]]]
    scalars: Mapping[str, float]
    rng: Mapping[str, Tensor]
    about: Mapping[str, Any] = field(default_factory=dict)


def save(folder: Path, snapshot: Snapshot, groups: Groups, keep: int = 0) -> Path:
    """Write one checkpoint and return its path. Collective; all or nothing.

    Args:
        folder: of the run's checkpoints.
        snapshot: this rank's part.
        groups: the grid's process groups.
        keep: newest checkpoints to keep; 0 keeps all.

    Raises:
        CheckpointError: a file could not be written. The older checkpoints are untouched.
    """
    final = folder / checkpoint_name(snapshot.progress.iteration)
    part = final.with_name(final.name + ".tmp")
    writer = _Writer(part, groups)
    for name, shard, kinds in snapshot.parameters:
        writer.add(name, shard, kinds)
    writer.finish(snapshot.rng)
    problem = _first_problem(written := _gather(writer.written, groups))
    if groups.rank == 0 and not problem:
        try:
            _write_manifest(part / "manifest.json", snapshot, written, groups)
            _swap_in(part, final)
            _sync(folder)
        except OSError as error:
            problem = f"rank 0: {final}: {error}"
    _raise_together(problem, groups, part)
    if groups.rank == 0 and keep:
        prune(folder, final, keep)
    return final


def prune(folder: Path, newest: Path, keep: int) -> None:
    """Remove all but the ``keep`` newest checkpoints, counted from ``newest``, which was just written.

    Checkpoints of later iterations belong to a future that was abandoned, when an older
    checkpoint was resumed, and go first. What can not be removed is left and named: a run
    does not end for it.
    """
    found = list_checkpoints(folder)
    at = found.index(newest)
    for old in [*found[at + 1 :], *found[: max(0, at + 1 - keep)]]:
        shutil.rmtree(old, ignore_errors=True)
        if old.exists():
            LOG.warning("checkpoint %s could not be removed", old)


def _swap_in(part: Path, final: Path) -> None:
    """Rename ``part`` to ``final``; a checkpoint of that name goes only once the new one is there."""
    old = final.with_name(final.name + ".old.tmp")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    try:
        os.replace(part, final)
    except OSError:
        if old.exists():
            os.replace(old, final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _describe(shard: Any, local: Tensor, degree: int) -> dict[str, Any]:
    shape = list(local.shape)
    if shard is None:
        return {"shape": shape, "dim": None, "parts": []}
    shape[shard.dim] *= degree
    return {"shape": shape, "dim": shard.dim, "parts": list(shard.parts)}


@dataclass
class _Written:
    """What one rank has put on disk."""

    problem: str = ""
    files: Files = field(default_factory=dict)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensor_rank: int = 0


class _Writer:
    """Writes one rank's tensors as they come, in files of about :data:`PIECE_BYTES`.

    The state of a rank never lies in host memory as a whole. Reading a parameter is
    collective, so a problem does not stop the caller: it is kept and nothing more is written.
    """

    def __init__(self, folder: Path, groups: Groups):
        self.folder, self.groups = folder, groups
        self.written = _Written(tensor_rank=groups.tensor_rank)
        self.held: dict[str, Tensor] = {}
        self.pieces = 0

    @property
    def piece(self) -> str:
        """The name of the file that is being filled."""
        groups = self.groups
        return shard_name(groups.pipe_rank, groups.pipe_size, groups.tensor_rank, groups.tensor_size, self.pieces)

    def add(self, name: str, shard: Any, kinds: Mapping[str, Tensor]) -> None:
        """Take one parameter; write a file when enough are held."""
        if self.groups.data_rank or self.groups.seq_rank:
            return
        described = _describe(shard, kinds["weight"], self.groups.tensor_size)
        self.written.tensors[name] = {**described, "file": self.piece}
        if not self.written.problem:
            self.held |= {f"{kind}/{name}": tensor.detach().cpu().contiguous() for kind, tensor in kinds.items()}
        if sum(tensor.nbytes for tensor in self.held.values()) >= PIECE_BYTES:
            self._flush()

    def finish(self, rng: Mapping[str, Tensor]) -> None:
        """Write what is still held, and the generator states."""
        self._flush()
        if self.groups.data_rank == 0:
            self._write(rng_name(self.groups.coordinate), rng)

    def _flush(self) -> None:
        if self.held:
            self._write(self.piece, self.held)
            self.held = {}
            self.pieces += 1

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write a file, to the disk itself."""
        if self.written.problem:
            return
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(dict(tensors), path)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self.written.files[name] = {"bytes": path.stat().st_size, "crc32": crc32(path)}
        except (OSError, SafetensorError) as error:
            self.written.problem = f"{self.folder}: {error}"


def crc32(path: Path) -> int:
    """Return the CRC-32 of a file's bytes, which tells of damage that leaves the size alone."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            value = zlib.crc32(block, value)
    return value


def _write_manifest(path: Path, snapshot: Snapshot, written: list[_Written], groups: Groups) -> None:
    grid = groups.grid
    tensors: dict[str, dict[str, Any]] = {}
    for each in sorted(written, key=lambda each: each.tensor_rank):
        for name, described in each.tensors.items():
            facts = {key: value for key, value in described.items() if key != "file"}
            tensors.setdefault(name, {**facts, "files": []})["files"].append(described["file"])
    manifest = {
        "format": FORMAT,
        **snapshot.about,
        "progress": vars(snapshot.progress),
        "scalars": dict(snapshot.scalars),
        "layout": {"pipe": grid.pipe, "data": grid.data, "seq": grid.seq, "tensor": grid.tensor},
        "files": {name: facts for each in written for name, facts in each.files.items()},
        "tensors": tensors,
    }
    with open(path, "w", encoding="utf8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _gather(mine: _Written, groups: Groups) -> list[_Written]:
    """Return what all ranks wrote, by rank, on rank 0; elsewhere an empty list. Also a barrier for rank 0."""
    if groups.grid.world_size == 1:
        return [mine]
    answers: list[Any] = [None] * groups.grid.world_size if groups.rank == 0 else []
    dist.gather_object(mine, answers if groups.rank == 0 else None, dst=0)
    return answers


def _first_problem(written: list[_Written]) -> str:
    return next((f"rank {rank}: {each.problem}" for rank, each in enumerate(written) if each.problem), "")


def _raise_together(problem: str, groups: Groups, part: Path) -> None:
    """Raise on every rank if rank 0 knows of a problem. Also a barrier."""
    if problem and groups.rank == 0:
        # Before anybody hears of it: every rank has reported, so nobody writes there any more.
        shutil.rmtree(part, ignore_errors=True)
    verdict = [problem]
    if groups.grid.world_size > 1:
        dist.broadcast_object_list(verdict, src=0)
    if not verdict[0]:
        return
    raise CheckpointError(
        f"the checkpoint was not saved: {verdict[0]}; free some space or set CKPT_DIR, "
        "and give the same command again; older checkpoints are as they were"
    )


def find_together(folder: Path, groups: Groups) -> Found | None:
    """Return the checkpoint to resume from, the same one on every rank, or None. Collective.

    Only rank 0 looks: two ranks that see a shared folder at different moments would
    resume from different iterations.

    Raises:
        CheckpointError: on every rank, when there are checkpoints and all are damaged.
    """
    answer: list[Found | CheckpointError | None] = [None]
    if groups.rank == 0:
        try:
            answer = [find_latest(folder)]
        except CheckpointError as error:
            answer = [error]
    if groups.grid.world_size > 1:
        dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    return answer[0]


def load(
    path: Path, manifest: Mapping[str, Any], groups: Groups, names: Iterable[str]
) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Yield this rank's part of the parameters ``names``, file by file: name -> kind -> tensor.

    Files that hold none of them are not read. A name that the checkpoint does not hold is
    not among what is yielded.

    Raises:
        CheckpointError: it was written with another tensor-parallel degree, or a file is damaged.
    """
    check_layout(path, manifest, groups.tensor_size)
    for file, held in files_of(manifest, names, groups.tensor_rank).items():
        read: dict[str, dict[str, Tensor]] = {}
        for key, tensor in _read(path, manifest, file, set(held)):
            kind, name = key.split("/", 1)
            read.setdefault(name, {})[kind] = tensor
        yield read


def load_rng(path: Path, manifest: Mapping[str, Any], groups: Groups) -> dict[str, Tensor] | None:
    """Return the generator states of this rank's place, None when the checkpoint's layout has no such place.

    That is: another number of pipeline stages, sequence-parallel or tensor-parallel ranks.

    Raises:
        CheckpointError: the file is damaged or missing.
    """
    layout, grid = manifest["layout"], groups.grid
    if any(layout[axis] != grid.degree(axis) for axis in ("pipe", "seq", "tensor")):
        return None
    if manifest["format"] > 1:
        return dict(_read(path, manifest, rng_name(groups.coordinate)))
    pairs = (pair for file in files_of(manifest, (), groups.tensor_rank) for pair in _read(path, manifest, file))
    return {key.removeprefix("rng/"): tensor for key, tensor in pairs if key.startswith("rng/")}


def _read(
    path: Path, manifest: Mapping[str, Any], name: str, only: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file by key, once its bytes are known to be what was written.

    Args:
        path: of the checkpoint.
        manifest: its manifest.
        name: of the file.
        only: parameters of which every kind is wanted; None: everything.
    """
    file = path / name
    if name not in manifest["files"]:
        raise CheckpointError(f"{path}: the manifest names no {name}; it is not a whole checkpoint")
    try:
        if crc32(file) != manifest["files"][name]["crc32"]:
            raise CheckpointError(
                f"{file}: its content changed since it was written (CRC-32 differs from the manifest's); "
                f"remove {path} to resume from the checkpoint before it"
            )
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a mapping
                if only is None or key.split("/", 1)[1] in only:
                    yield key, tensors.get_tensor(key)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from None
