"""Computes a micro-batch that was not finite again, on one rank, from what its run kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megads.checkpoint.format.folders import CheckpointRef, checkpoints_in, iteration_of
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.load import load_shards
from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.checkpoint.resume.start_point import source_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.run_files import CONFIG
from megads.config.run_folder import load_config
from megads.config.schema import ParallelConfig, RunConfig
from megads.device.vendor import vendor
from megads.engine.build import make_engine
from megads.errors import ConfigError
from megads.train.numbers.kept import CHECKPOINTS, Kept, read_kept
from megads.train.numbers.operators import Origin, watched, wrong_weight


@dataclass(frozen=True)
class Replayed:
    """What one rank found.

    Attributes:
        kept: of the run.
        origin: None: every number is finite here.
        loss: of the micro-batch.
        weights: the checkpoint that was used.
        is_exact: whether its weights are those of the step.
    """

    kept: Kept
    origin: Origin | None
    loss: float
    weights: Path
    is_exact: bool


def replay(folder: Path, env: Mapping[str, str]) -> Replayed:
    """Compute the micro-batch in ``folder`` again.

    Raises:
        ConfigError, CheckpointError: something is missing or damaged, or the run has adapters.
    """
    kept = read_kept(folder)
    run_dir = folder.resolve().parent
    run = one_rank(load_config(run_dir / CONFIG), kept)
    source = _weights(folder, run, run_dir, kept)
    row = vendor(env)
    device = row.device(0)
    engine: Any = make_engine(run, Groups(Grid(), 0), device, kept.end)
    with Reader(source.path, source.manifest) as reader:
        load_shards(reader, engine.state.owned_shards(), ("weight",))
    engine.state.sync_from_masters()
    weight = wrong_weight(engine.chunks)
    losses: list[float] = []

    def accepts(loss: float) -> bool:
        losses.append(loss)
        return False

    with watched(engine.chunks) as watch:
        engine.train_step([torch.tensor(kept.batch)], 0.0, first_sample=kept.first_sample, accepts=accepts)
    is_exact = iteration_of(source.path) == kept.iteration - 1
    return Replayed(kept, weight or watch.verdict(), losses[0], source.path, is_exact)


def one_rank(run: RunConfig, kept: Kept) -> RunConfig:
    """Return the settings of ``run`` on one rank of the native engine, with the micro-batch of ``kept`` as its batch.

    Raises:
        ConfigError: the run trains adapters.
    """
    if run.model.lora_rank:
        raise ConfigError("megads replay computes no adapters (LORA_RANK); merge them, or look at the report itself")
    rows = len(kept.batch)
    changes: dict[str, dict[str, Any]] = {
        "train": {"micro_batch": rows, "global_batch": rows, "grad_acc_steps": 1},
        "engine": {"kind": "native", "kernels": "eager"},
        "deepspeed": {"offload_optimizer": "none", "offload_params": "none"},
    }
    if run.train.dtype == "fp16":
        # The gradient of one micro-batch is not divided by their number: what overflows does so at the same scale.
        changes["optim"] = {"loss_scale": kept.loss_scale / kept.micro_batches}
    sections = {name: getattr(run, name).model_copy(update=each) for name, each in changes.items()}
    return run.model_copy(update={**sections, "parallel": ParallelConfig(data=1, zero_stage=0)})


def _weights(folder: Path, run: RunConfig, run_dir: Path, kept: Kept) -> CheckpointRef:
    own = folder / CHECKPOINTS
    if own.is_dir() and checkpoints_in(own):
        return source_of(own)
    place = checkpoint_folder(run, run_dir)
    before = [iteration_of(path) for path in checkpoints_in(place)] if place.is_dir() else []
    steps = [step for step in before if step < kept.iteration]
    if not steps:
        raise ConfigError(
            f"{folder}: holds no weights, and {place} has no checkpoint before step {kept.iteration}; "
            "NONFINITE_KEEP=weights keeps those of the step"
        )
    return source_of(place, max(steps))
