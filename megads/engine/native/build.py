"""From settings to a model in the native engine, on this rank."""

from __future__ import annotations

from functools import partial

import torch

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.config.stages import chunk_steps
from megads.engine.compiler import may_postpone, postpone_compiler
from megads.engine.native.engine import NativeEngine
from megads.engine.native.pipeline import NativePipelineEngine
from megads.engine.native.units import Unit, cut, partition_of
from megads.engine.recompute import recompute_of
from megads.engine.tied_embedding import TiedEmbedding, tie
from megads.models.build import build_model
from megads.models.gpt import GPT
from megads.parallel.tensor import placed


def make_native_engine(
    run: RunConfig, groups: Groups, device: torch.device, dtype: torch.dtype, eod: int | None
) -> NativeEngine:
    """Build this rank's part of the model in ``dtype``, and the engine around it; see ``megads.engine.build``."""
    if may_postpone(run, groups.grid.world_size):
        postpone_compiler()
    units: list[Unit] = []
    shared: list[TiedEmbedding] = []
    recompute = recompute_of(run, device)

    def arrange(module: GPT, chunk: int) -> None:
        shared.extend(filter(None, [tie(module, groups)]))
        units.extend(cut(module, run, groups, chunk))

    # No rank holds the model in the host's memory, and no rank holds it twice.
    with placed(device, dtype, hollow=True):
        chunks = [
            build_model(run, groups, recompute, partition_of, partial(arrange, chunk=chunk), steps)
            for chunk, steps in enumerate(chunk_steps(run)[groups.pipe_rank])
        ]
    if groups.pipe_size == 1:
        return NativeEngine(chunks, units, run, groups, device, eod)
    return NativePipelineEngine(chunks, units, run, groups, device, eod, *shared)
