"""Checkpoints of small engines: written by all ranks, read by any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megads.checkpoint.resume.progress import Progress

KINDS = ("weight", "exp_avg", "exp_avg_sq")


def save(engine: Any, run: Any, groups: Any, folder: Path, progress: Progress) -> Path:
    """Write a checkpoint in ``folder``. Collective."""
    from megads.checkpoint.format.tensors import parameters_of
    from megads.checkpoint.resume.compatibility import shape_of
    from megads.checkpoint.save import Saver, Snapshot
    from megads.config.deepspeed.dictionary import effective_zero_stage

    degrees = {axis: groups.grid.degree(axis) for axis in groups.coordinate}
    snapshot = Snapshot(
        progress=progress,
        pieces=engine.pieces(),
        scalars=engine.scalars(),
        tensors=parameters_of(run.model),
        model=shape_of(run),
        settings={},
        about={},
        layout={**degrees, "zero_stage": effective_zero_stage(run)},
        states=engine.whole_states(),
    )
    return Saver(folder, groups).save(snapshot)


def load(engine: Any, groups: Any, path: Path) -> Progress:
    """Have ``engine`` resume from the checkpoint ``path``; return how far it is. Collective."""
    from megads.checkpoint.format.reader import Reader
    from megads.checkpoint.load import load_pieces
    from megads.train.resume import tensors_of

    with Reader(path) as reader:
        load_pieces(reader, engine.pieces(), reader.manifest.kinds)
        engine.load_whole_states(lambda name: tensors_of(reader.state(name)))
        engine.spread()
        engine.load_scalars(reader.manifest.scalars)
        return Progress.read(reader.manifest.progress)


def whole_tensors(engine: Any, groups: Any) -> dict[str, dict[str, Any]]:
    """Return this stage's masters and moments, each of the whole parameter, as DeepSpeed gives them. Collective."""
    import torch
    import torch.distributed as dist

    from megads.parallel.tensor import join_shards

    found: dict[str, dict[str, Any]] = {}
    for state in engine.states():
        found[state.name] = {}
        for kind, tensor in state.tensors.items():
            slices = [torch.empty_like(tensor) for _ in range(groups.tensor_size)]
            if groups.tensor is None:
                slices[0].copy_(tensor)
            else:
                dist.all_gather(slices, tensor.contiguous(), group=groups.tensor)
            found[state.name][kind] = join_shards(slices, getattr(state.parameter, "shard", None))
    return found
