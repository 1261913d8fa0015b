"""From settings to a model in DeepSpeed's engine, on this rank."""

from __future__ import annotations

import torch

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.compiler import may_postpone, postpone_compiler
from megads.engine.deepspeed.engine import DeepSpeedEngine
from megads.engine.deepspeed.package import import_deepspeed
from megads.engine.deepspeed.pipeline import PipelineEngine
from megads.engine.deepspeed.recompute import make_recompute
from megads.engine.deepspeed.zero import find_partition, forget_second_partitions, partitioned
from megads.models.build import build_model
from megads.parallel.tensor import placed


def make_deepspeed_engine(
    run: RunConfig, groups: Groups, device: torch.device, dtype: torch.dtype, eod: int | None
) -> DeepSpeedEngine:
    """Build this rank's part of the model in ``dtype``, and the engine around it; see ``megads.engine.build``."""
    if may_postpone(run, groups.grid.world_size):
        postpone_compiler()
    import_deepspeed()
    # No rank holds the model in the host's memory, and a device never holds it in float32 for a run in bf16.
    with placed(device, dtype), partitioned(run, groups, device):
        module = build_model(run, groups, make_recompute(run, groups, device), find_partition)
    forget_second_partitions(module)
    engine = PipelineEngine if groups.pipe_size > 1 else DeepSpeedEngine
    return engine(module, run, groups, device, eod)
