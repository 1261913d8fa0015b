"""Checkpoints of any layout from whole arrays, cut with numpy: nothing here is shared with what is tested."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.blocks import Entry, write_file
from megads.checkpoint.format.manifest import File, Manifest, write_manifest
from megads.checkpoint.format.runs import Contents, with_files
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.comm.grid import Grid
from megads.config.schema import ModelConfig

KINDS = ("weight", "exp_avg", "exp_avg_sq")
Arrays = dict[tuple[str, str], NDArray[np.float32]]
"""(kind, name) -> the whole tensor."""


def make_arrays(model: ModelConfig, seed: int = 0) -> Arrays:
    """Return random weights and moments, every number another."""
    draw = np.random.default_rng(seed)
    return {
        (kind, name): draw.standard_normal(cut.shape, np.float32)
        for name, cut in parameters_of(model).items()
        for kind in KINDS
    }


def take_slice(whole: NDArray[np.float32], dim: int | None, parts: Sequence[int], rank: int, degree: int):
    """Return the slice of a tensor-parallel rank: of every fused part its ``rank``-th ``degree``-th."""
    if dim is None:
        return whole
    fused = np.split(whole, np.cumsum(parts)[:-1], axis=dim)
    return np.concatenate([np.split(part, degree, axis=dim)[rank] for part in fused], axis=dim)


def write_source(
    folder: Path,
    model: ModelConfig,
    arrays: Arrays,
    grid: Grid,
    *,
    seed: int = 0,
    zero_stage: int = 1,
    iteration: int = 50,
    kinds: Sequence[str] = KINDS,
    **more: Any,
) -> Path:
    """Write a checkpoint as ranks of ``grid`` would that share every parameter unevenly, and return its path."""
    path = folder / f"iter_{iteration:07d}"
    path.mkdir(parents=True)
    draw, files = random.Random(seed), {}
    ends = _share_ends(model, grid, draw)
    for rank in range(grid.world_size):
        at = grid.coordinate(rank)
        place = at["data"] * grid.seq + at["seq"]
        entries, pieces = [], []
        for name, cut in parameters_of(model).items():
            if _stage(name, model, grid.pipe) != at["pipe"] or (at["tensor"] and (cut.dim is None or grid.tensor == 1)):
                continue
            first, last = ends[name, at["tensor"]][place : place + 2]
            if first == last:
                continue
            pieces.append((name, first, last - first))
            for kind in kinds:
                local = take_slice(arrays[kind, name], cut.dim, cut.parts, at["tensor"], grid.tensor)
                entries.append(Entry.of(f"{kind}/{name}", local.reshape(-1)[first:last]))
        file = f"rank-{rank:05d}.safetensors"
        size, crc = write_file(path / file, entries)
        files[rank] = (File(size, crc, at["tensor"]), pieces)
    layout = {axis: grid.degree(axis) for axis in ("pipe", "data", "seq", "tensor")}
    write_manifest(path, _manifest(iteration, kinds, {**layout, "zero_stage": zero_stage}, model, files, more))
    return path


def _share_ends(model: ModelConfig, grid: Grid, draw: random.Random) -> dict[tuple[str, int], list[int]]:
    """Return for every slice where the shares of data x seq begin and end; some are empty."""
    size = grid.data * grid.seq
    ends = {}
    for name, cut in parameters_of(model).items():
        for tensor in range(grid.tensor):
            count = cut.of(tensor, grid.tensor).count
            inner = sorted(draw.randint(0, count) for _ in range(size - 1))
            ends[name, tensor] = [0, *inner, count]
    return ends


def _stage(name: str, model: ModelConfig, stages: int) -> int:
    """Return a stage for every parameter; which is of no account to a reader."""
    layer = int(name.split(".")[1]) if name.startswith("layers.") else 0 if name.startswith(("e", "p")) else -1
    return layer * stages // (model.num_layers + model.decoder_layers) if layer >= 0 else stages - 1


def _manifest(
    iteration: int,
    kinds: Sequence[str],
    layout: Mapping[str, int],
    model: ModelConfig,
    files: Mapping[int, tuple[File, Contents]],
    more: Mapping[str, Any],
) -> Manifest:
    facts: dict[str, Any] = {
        "progress": {"iteration": iteration, "consumed_samples": 8 * iteration},
        # As runs do: who leaves the optimizer out leaves its counts out.
        "scalars": {"optimizer_step": float(iteration)} if len(kinds) > 1 else {},
        "settings": {"model": model.model_dump(), "train": {"seed": 1234}},
        "about": {"megads": "0"},
        **more,
    }
    shape = shape_of(model)
    return with_files(Manifest(iteration, tuple(kinds), layout, shape, parameters_of(model), {}, {}, **facts), files)
