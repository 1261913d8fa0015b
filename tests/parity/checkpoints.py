"""Checkpoints of small engines: written by all ranks, read by any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megads.checkpoint.resume.progress import Progress

KINDS = ("weight", "exp_avg", "exp_avg_sq")


def save(engine: Any, run: Any, groups: Any, folder: Path, progress: Progress) -> Path:
    """Write a checkpoint in ``folder``. Collective."""
    from megads.checkpoint.format.shard_layout import parameters_of
    from megads.checkpoint.resume.compatibility import shape_of
    from megads.checkpoint.save import Saver, Snapshot
    from megads.config.deepspeed.dictionary import effective_zero_stage

    degrees = {axis: groups.grid.degree(axis) for axis in groups.grid.coordinate(groups.rank)}
    snapshot = Snapshot(
        progress=progress,
        shards=engine.state.owned_shards(),
        scalars=engine.state.scalars(),
        tensors=parameters_of(run.model),
        model=shape_of(run),
        settings={},
        about={},
        layout={**degrees, "zero_stage": effective_zero_stage(run)},
        states=engine.state.whole_states(),
    )
    return Saver(folder, groups).save(snapshot)


def load(engine: Any, groups: Any, path: Path) -> Progress:
    """Have ``engine`` resume from the checkpoint ``path``; return how far it is. Collective."""
    from megads.checkpoint.format.reader import Reader
    from megads.checkpoint.load import load_shards
    from megads.train.resume import tensors_of

    with Reader(path) as reader:
        load_shards(reader, engine.state.owned_shards(), reader.manifest.kinds)
        engine.state.load_whole_states(lambda name: tensors_of(reader.state(name)))
        engine.state.sync_from_masters()
        engine.state.load_scalars(reader.manifest.scalars)
        return Progress.read(reader.manifest.progress)


def whole_tensors(engine: Any, groups: Any) -> dict[str, dict[str, Any]]:
    """Return this stage's masters and moments, each of the whole parameter, as DeepSpeed gives them. Collective."""
    import torch
    import torch.distributed as dist

    from megads.parallel.tensor import join_shards

    found: dict[str, dict[str, Any]] = {}
    for state in engine.state.by_parameter():
        found[state.name] = {}
        for kind, tensor in state.tensors.items():
            slices = [torch.empty_like(tensor) for _ in range(groups.tensor_size)]
            if groups.tensor is None:
                slices[0].copy_(tensor)
            else:
                dist.all_gather(slices, tensor.contiguous(), group=groups.tensor)
            found[state.name][kind] = join_shards(slices, getattr(state.parameter, "shard", None))
    return found
