"""From settings to a model in an engine, on this rank."""

from __future__ import annotations

import torch

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.base import Engine
from megads.engine.checkpointing import make_recompute
from megads.engine.deepspeed import DeepSpeedEngine
from megads.engine.library import import_deepspeed
from megads.engine.partition import forget_second_partitions, partitioned
from megads.engine.pipeline import PipelineEngine
from megads.models.build import build_model


def make_engine(run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None) -> Engine:
    """Build this rank's part of the model, with its initial weights, and the engine around it.

    Args:
        run: derived settings.
        groups: the grid's process groups.
        device: where the model goes.
        eod: the token that ends a document; None where no setting of ``run.data`` needs it.

    Raises:
        ConfigError, DependencyError, DeviceError: see the model and the engine.
    """
    import_deepspeed()
    with partitioned(run, groups, device):
        module = build_model(run, groups, make_recompute(run, groups, device))
    forget_second_partitions(module)
    engine = PipelineEngine if groups.pipe_size > 1 else DeepSpeedEngine
    return engine(module, run, groups, device, eod)
