"""Write a run's state to disk and read it back, bit for bit.

Every parameter is stored in float32 with its moments, joined over the data-parallel ranks
and split over the tensor-parallel ones. Its global shape and the way it is split are in
the manifest, so that any other layout can be cut from it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
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
    find_latest,
    list_checkpoints,
    shard_name,
    shards_of,
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

    ``parameters`` yields (name, shard, tensors); it is consumed on every rank, because
    reading a parameter is collective, but only the first data rank of each tensor rank
    keeps and writes what it yields.
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
    shapes: dict[str, Any] = {}
    pieces = _Pieces(part, groups)
    for name, shard, kinds in snapshot.parameters:
        if pieces.writes:
            pieces.add({f"{kind}/{name}": tensor for kind, tensor in kinds.items()})
            shapes[name] = _describe(shard, kinds["weight"], groups.tensor_size)
    if pieces.writes:
        pieces.add({f"rng/{name}": state for name, state in snapshot.rng.items()})
        pieces.flush()
    problem = pieces.problem
    files = _agree(problem, pieces.files, groups, part)
    if groups.rank == 0:
        try:
            _write_manifest(part / "manifest.json", snapshot, shapes, files, groups)
            _swap_in(part, final)
            _sync(folder)
        except OSError as error:
            problem = f"{final}: {error}"
    _agree(problem, {}, groups, part)
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


class _Pieces:
    """Writes one rank's tensors as they come, in files of about :data:`PIECE_BYTES`.

    The state of a rank never lies in host memory as a whole. Reading a parameter is
    collective, so a problem does not stop the caller: it is kept and nothing more is written.
    """

    def __init__(self, folder: Path, groups: Groups):
        self.folder, self.groups = folder, groups
        self.writes = groups.data_seq is None or dist.get_rank(groups.data_seq) == 0
        self.problem = ""
        self.files: Files = {}
        self.held: dict[str, Tensor] = {}

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Take tensors; write a file when enough are held."""
        if not self.problem:
            self.held |= {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        if sum(tensor.nbytes for tensor in self.held.values()) >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held, to the disk itself."""
        if self.problem or not self.held:
            return
        path = self.folder / shard_name(self.groups.tensor_rank, self.groups.tensor_size, len(self.files))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(self.held, path)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self.files[path.name] = {"bytes": path.stat().st_size, "crc32": crc32(path)}
        except (OSError, SafetensorError) as error:
            self.problem = f"{self.folder}: {error}"
        self.held = {}


def crc32(path: Path) -> int:
    """Return the CRC-32 of a file's bytes, which tells of damage that leaves the size alone."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            value = zlib.crc32(block, value)
    return value


def _write_manifest(path: Path, snapshot: Snapshot, shapes: Any, files: Files, groups: Groups) -> None:
    grid = groups.grid
    manifest = {
        "format": FORMAT,
        **snapshot.about,
        "progress": vars(snapshot.progress),
        "scalars": dict(snapshot.scalars),
        "layout": {"pipe": grid.pipe, "data": grid.data, "seq": grid.seq, "tensor": grid.tensor},
        "files": files,
        "tensors": shapes,
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


def _agree(problem: str, written: Files, groups: Groups, part: Path) -> Files:
    """Return what all ranks wrote; raise on every rank if any has a problem. Also a barrier."""
    answers: list[tuple[str, Files]] = [(problem, written)] * groups.grid.world_size
    if groups.grid.world_size > 1:
        dist.all_gather_object(answers, (problem, written))
    for rank, (text, _) in enumerate(answers):
        if text:
            if groups.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint was not saved: rank {rank}: {text}; free some space or set CKPT_DIR, "
                "and give the same command again; older checkpoints are as they were"
            )
    return {name: facts for _, files in answers for name, facts in files.items()}


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


@dataclass(frozen=True)
class Piece:
    """What one file gives back: tensors by name and kind, generator states."""

    read: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]


def load(path: Path, manifest: Mapping[str, Any], groups: Groups) -> Iterator[Piece]:
    """Yield this rank's part of the checkpoint ``path``, file by file; a parameter lies in one file.

    Raises:
        CheckpointError: it was written with another tensor-parallel degree, or a file is damaged.
    """
    check_layout(path, manifest, groups.tensor_size)
    for shard in shards_of(manifest, groups.tensor_rank, groups.tensor_size):
        file = path / shard
        piece = Piece({}, {})
        try:
            if crc32(file) != manifest["files"][shard]["crc32"]:
                raise CheckpointError(
                    f"{file}: its content changed since it was written (CRC-32 differs from the manifest's); "
                    f"remove {path} to resume from the checkpoint before it"
                )
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a mapping
                    kind, name = key.split("/", 1)
                    target = piece.rng if kind == "rng" else piece.read.setdefault(name, {})
                    target[name if kind == "rng" else kind] = tensors.get_tensor(key)
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"{file}: {error}") from None
        yield piece
