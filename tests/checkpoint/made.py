"""Small checkpoints of any layout, made without an engine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.blocks import Entry, write_file
from megads.checkpoint.format.commit import commit, part_of
from megads.checkpoint.format.folders import CheckpointRef, candidates, checkpoint_name, list_checkpoints
from megads.checkpoint.format.manifest import File, Manifest, file_name
from megads.checkpoint.format.runs import with_files
from megads.checkpoint.format.shard_layout import ShardLayout

KINDS = ("weight", "exp_avg", "exp_avg_sq")
TENSORS = {
    "embedding.weight": ShardLayout((8, 6), 0, (8,)),
    "layers.0.attention.qkv.weight": ShardLayout((16, 6), 0, (8, 4, 4)),
    "layers.0.attention.qkv.bias": ShardLayout((16,), 0, (8, 4, 4)),
    "layers.0.attention.out.weight": ShardLayout((6, 8), 1, (8,)),
    "final_norm.weight": ShardLayout((6,)),
}
"""One of each way to be cut, for up to four tensor-parallel ranks."""

Numbers = Mapping[str, Mapping[str, NDArray[np.float32]]]


def numbers_of(tensors: Mapping[str, ShardLayout], kinds: Sequence[str] = KINDS, seed: int = 0) -> Numbers:
    """Return random whole tensors: kind -> name -> numbers."""
    rng = np.random.default_rng(seed)
    return {
        kind: {name: rng.standard_normal(cut.shape, dtype=np.float32) for name, cut in tensors.items()}
        for kind in kinds
    }


def slice_of(whole: NDArray[np.float32], cut: ShardLayout) -> NDArray[np.float32]:
    """Return a slice by the plain meaning of the word: the rank's share of every fused part, one after the other."""
    if cut.dim is None:
        return whole
    ends = np.cumsum(cut.parts)[:-1]
    shares = [np.split(part, cut.degree, cut.dim)[cut.rank] for part in np.split(whole, ends, cut.dim)]
    return np.concatenate(shares, cut.dim)


def shares(count: int, bounds: Sequence[float]) -> list[tuple[int, int]]:
    """Return (first, count) of the runs between ``bounds``, fractions of ``count``."""
    ends = [0, *sorted(int(bound * count) for bound in bounds), count]
    return [(first, last - first) for first, last in itertools.pairwise(ends)]


def make(
    folder: Path,
    iteration: int = 50,
    *,
    tensors: Mapping[str, ShardLayout] = TENSORS,
    numbers: Numbers | None = None,
    degree: int = 2,
    bounds: Sequence[float] = (0.4,),
    rng: Mapping[str, NDArray[np.uint8]] | None = None,
    **changes: Any,
) -> Path:
    """Write a checkpoint of ``degree`` tensor ranks, whose slices are shared by ``len(bounds) + 1`` ranks each."""
    numbers = numbers or numbers_of(tensors)
    final = folder / checkpoint_name(iteration)
    part_of(final).mkdir(parents=True)
    files = {}
    for share in range(len(bounds) + 1):
        for rank in range(degree):
            held, pieces = [], []
            for name, cut in tensors.items():
                mine = cut.of(rank, degree)
                if rank and mine.is_whole:
                    continue
                first, count = shares(mine.count, bounds)[share]
                if count:
                    pieces.append((name, first, count))
                    held += [
                        Entry.of(f"{kind}/{name}", slice_of(whole[name], mine).reshape(-1)[first : first + count])
                        for kind, whole in numbers.items()
                    ]
            if share == 0:
                held += [Entry.of(f"rng/0-0-{rank}/{key}", state) for key, state in (rng or {}).items()]
            number = share * degree + rank
            files[number] = (File(*write_file(part_of(final) / file_name(number), held), rank), pieces)
    manifest = {
        "iteration": iteration,
        "kinds": tuple(numbers),
        "layout": {"pipe": 1, "data": len(bounds) + 1, "seq": 1, "tensor": degree, "zero_stage": 1},
        "model": {"vocab_size": 7},
        "tensors": tensors,
        "files": {},
        "runs": {},
        "settings": {"model": {"seq_length": 32}, "optim": {"lr": 0.001}},
        "progress": {"iteration": iteration, "consumed_samples": iteration * 8, "last_loss": 2.5},
    }
    places = {file_name(rank): f"0-0-{rank}" for rank in range(degree if rng else 0)}
    commit(final, with_generators(with_files(Manifest(**{**manifest, **changes}), files), places))
    return final


def with_generators(manifest: Manifest, places: Mapping[str, str]) -> Manifest:
    """Return ``manifest`` with generator states in some files, as versions wrote whose dropout followed them."""
    files = {name: replace(file, generators=places.get(name, "")) for name, file in manifest.files.items()}
    return replace(manifest, files=files)


def find_latest(folder: Path) -> CheckpointRef | None:
    """Return the newest checkpoint in ``folder`` whose manifest and sizes are right, None when it holds none."""
    return next(candidates(list_checkpoints(folder)), None)
