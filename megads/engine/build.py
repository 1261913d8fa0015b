"""From settings to a model in an engine, on this rank."""

from __future__ import annotations

import torch

from megads.comm.groups import Groups
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.engine.base import Engine
from megads.engine.recompute import recompute_of
from megads.models.build import build_model
from megads.models.gpt import GPT
from megads.parallel.tensor import placed

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_engine(run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None) -> Engine:
    """Build this rank's part of the model, with its initial weights, and the engine around it.

    ``eod`` is the token that ends a document; None where no setting of ``run.data`` needs it.

    Raises:
        ConfigError, DependencyError, DeviceError: see the model and the engine.
    """
    native = choose(run, groups.grid.world_size).kind == "native"
    return (_native if native else _deepspeed)(run, groups, device, eod)


def _native(run: RunConfig, groups: Groups, device: torch.device, eod: int | None) -> Engine:
    from megads.engine.native.engine import NativeEngine
    from megads.engine.native.units import Unit, cut, partition_of

    units: list[Unit] = []

    def arrange(module: GPT) -> None:
        units.extend(cut(module, run, groups))

    # No rank holds the model in the host's memory, and no rank holds it twice.
    with placed(device, DTYPES[run.train.dtype], hollow=True):
        module = build_model(run, groups, recompute_of(run, device), partition_of, arrange)
    return NativeEngine([module], units, run, groups, device, eod)


def _deepspeed(run: RunConfig, groups: Groups, device: torch.device, eod: int | None) -> Engine:
    # Not at the top: importing DeepSpeed takes seconds, which the native engine saves.
    from megads.engine.deepspeed.compiler import may_postpone, postpone_compiler
    from megads.engine.deepspeed.engine import DeepSpeedEngine
    from megads.engine.deepspeed.package import import_deepspeed
    from megads.engine.deepspeed.pipeline import PipelineEngine
    from megads.engine.deepspeed.recompute import make_recompute
    from megads.engine.deepspeed.zero import find_partition, forget_second_partitions, partitioned

    if may_postpone(run, groups.grid.world_size):
        postpone_compiler()
    import_deepspeed()
    # No rank holds the model in the host's memory, and a device never holds it in float32 for a run in bf16.
    with placed(device, DTYPES[run.train.dtype]), partitioned(run, groups, device):
        module = build_model(run, groups, make_recompute(run, groups, device), find_partition)
    forget_second_partitions(module)
    engine = PipelineEngine if groups.pipe_size > 1 else DeepSpeedEngine
    return engine(module, run, groups, device, eod)
