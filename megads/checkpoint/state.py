"""Write a run's state to disk and read it back, bit for bit.

Every parameter is stored in float32 with its moments, joined over the data-parallel ranks
and split over the tensor-parallel ones. Its global shape and the way it is split are in
the manifest, so that any other layout can be cut from it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megads.checkpoint.layout import FORMAT, checkpoint_name, list_checkpoints, shard_name
from megads.checkpoint.match import check_layout
from megads.dist.groups import Groups
from megads.errors import CheckpointError


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
    problem = ""
    writes = groups.data_seq is None or dist.get_rank(groups.data_seq) == 0
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, Any] = {}
    for name, shard, kinds in snapshot.parameters:
        if writes:
            tensors |= {f"{kind}/{name}": t.detach().to("cpu", copy=True).contiguous() for kind, t in kinds.items()}
            shapes[name] = _describe(shard, kinds["weight"], groups.tensor_size)
    try:
        if writes:
            part.mkdir(parents=True, exist_ok=True)
            tensors |= {f"rng/{name}": state.cpu() for name, state in snapshot.rng.items()}
            _write_shard(part / shard_name(groups.tensor_rank, groups.tensor_size), tensors)
    except (OSError, SafetensorError) as error:
        problem = f"{part}: {error}"
    _agree(problem, groups)
    if groups.rank == 0:
        try:
            files = {p.name: p.stat().st_size for p in sorted(part.iterdir()) if p.suffix == ".safetensors"}
            _write_manifest(part / "manifest.json", snapshot, shapes, files, groups)
            if final.exists():
                shutil.rmtree(final)
            os.replace(part, final)
            _sync(folder)
            for old in list_checkpoints(folder)[:-keep] if keep else []:
                shutil.rmtree(old)
        except OSError as error:
            problem = f"{final}: {error}"
    _agree(problem, groups)
    return final


def _describe(shard: Any, local: Tensor, degree: int) -> dict[str, Any]:
    shape = list(local.shape)
    if shard is None:
        return {"shape": shape, "dim": None, "parts": []}
    shape[shard.dim] *= degree
    return {"shape": shape, "dim": shard.dim, "parts": list(shard.parts)}


def _write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _write_manifest(path: Path, snapshot: Snapshot, shapes: Any, files: dict[str, int], groups: Groups) -> None:
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


def _agree(problem: str, groups: Groups) -> None:
    """Raise on every rank if any rank has a problem; also a barrier."""
    problems: list[str | None] = [problem] * groups.grid.world_size
    if groups.grid.world_size > 1:
        dist.all_gather_object(problems, problem)
    for rank, text in enumerate(problems):
        if text:
            raise CheckpointError(f"the checkpoint was not saved: rank {rank}: {text}")


@dataclass(frozen=True)
class Restored:
    """What a rank reads back: tensors by name and kind, generator states."""

    read: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]


def load(path: Path, manifest: Mapping[str, Any], groups: Groups) -> Restored:
    """Read this rank's part of the checkpoint ``path``.

    Raises:
        CheckpointError: it was written with another tensor-parallel degree, or a file is damaged.
    """
    check_layout(path, manifest, groups.tensor_size)
    read: dict[str, dict[str, Tensor]] = {}
    rng: dict[str, Tensor] = {}
    file = path / shard_name(groups.tensor_rank, groups.tensor_size)
    try:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a mapping
                kind, name = key.split("/", 1)
                target = rng if kind == "rng" else read.setdefault(name, {})
                target[name if kind == "rng" else kind] = tensors.get_tensor(key)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from None
    return Restored(read, rng)
