"""From settings to a model in an engine, on this rank."""

from __future__ import annotations

import torch

from megads.comm.groups import Groups
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.engine.base import Engine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_engine(run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None) -> Engine:
    """Build this rank's part of the model, with its initial weights, and the engine around it.

    ``eod`` is the token that ends a document; None where no setting of ``run.data`` needs it.

    Raises:
        ConfigError, DependencyError, DeviceError: see the model and the engine.
    """
    dtype = DTYPES[run.train.dtype]
    # Not at the top: to import DeepSpeed takes seconds, which the native engine saves.
    if choose(run, groups.grid.world_size).kind == "native":
        from megads.engine.native.build import make_native_engine

        return make_native_engine(run, groups, device, dtype, eod)
    from megads.engine.deepspeed.build import make_deepspeed_engine

    return make_deepspeed_engine(run, groups, device, dtype, eod)
