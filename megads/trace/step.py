"""One step of one rank, traced: the engine is the real one, its tensors have no data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.data.samples.masked.rows import BertRow, T5Row
from megads.data.samples.retro.rows import RetroRow
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.timing.sections import run_clock
from megads.trace.calls import FORWARD, Call, Phases, Recorder
from megads.trace.kernels import fused
from megads.trace.memory import Peak, Tracked
from megads.trace.rank import joined, without_data

LR = 1e-4


@dataclass(frozen=True)
class Trace:
    """What one rank does in a step, once its buffers and its optimizer's state are there.

    Attributes:
        stage: its pipeline stage.
        calls: of every collective how many in a step.
        peak: memory; None where it was not counted.
        seconds: that the trace took.
    """

    rank: int
    world_size: int
    stage: int
    calls: Mapping[Call, int]
    peak: Peak | None
    seconds: float = field(compare=False)


def trace(run: RunConfig, rank: int, world_size: int, *, has_memory: bool = True) -> Trace:
    """Run one step of ``rank`` of ``world_size`` without data; ``run`` is derived for that many.

    The process must be no rank of another run. A first step, which is not counted, makes what later ones keep.
    Initial weights are not drawn.

    Raises:
        ConfigError: no such rank, ranks that the layout does not divide, or a run that cannot be traced.
        DependencyError: torch lacks what a trace needs.
    """
    check_rank(run, rank, world_size)
    started = time.perf_counter()
    tracked, phases = Tracked(is_on=has_memory), Phases()
    with ExitStack() as stack:
        groups = stack.enter_context(joined(run, rank, world_size))
        stack.enter_context(without_data(run, world_size))
        if run.machine != "cpu":
            stack.enter_context(fused())
        recorder = Recorder(groups, phases)
        run_clock(phases)
        stack.callback(run_clock, None)
        from megads.engine.build import make_engine

        with tracked.running(), recorder:
            engine = make_engine(run, groups, torch.device("cpu"), 0)
            batches = _batches(run, run.train.grad_acc_steps)
            if has_memory or choose(run, world_size).kind == "deepspeed":  # the native one sends the same in every step
                engine.train_step(batches[: 2 * groups.pipe_size], LR)
        recorder.calls = Counter()
        phases.phase, held = FORWARD, engine.memory_usage()
        tracked.hold(_kept(engine))
        before = tracked.now()
        with tracked.running(), recorder:
            engine.train_step(batches, LR)
        peak = tracked.peak(held, before)
        stage = groups.pipe_rank
    return Trace(rank, world_size, stage, dict(recorder.calls), peak, time.perf_counter() - started)


def _kept(engine: Any) -> list[Tensor]:
    """Return what is there in every step and may be empty between two of them."""
    return [parameter.data for parameter in engine.module.parameters()]


def check_rank(run: RunConfig, rank: int, world_size: int) -> None:
    """Refuse what cannot be traced.

    Raises:
        ConfigError: no such rank, ranks that the layout does not divide, or settings that need data.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"--rank {rank}: the ranks of --world {world_size} are 0 to {world_size - 1}")
    data_degree(run, world_size)
    if run.finetune.task:
        raise ConfigError(
            f"--trace: the rows of TASK={run.finetune.task} are read from files; trace the run without TASK"
        )


def _batches(run: RunConfig, number: int) -> list[Tensor]:
    """Return micro-batches of zeros, of the width that the family's samples have."""
    model, samples = run.model, FAMILIES[run.model.family].samples
    widths = {
        "bert": lambda: BertRow(model.seq_length).width,
        "t5": lambda: T5Row(model.seq_length, model.decoder_seq_length).width,
        "retro": lambda: RetroRow.of(model).width,
    }
    width = widths[samples]() if samples in widths else model.seq_length + 1
    return [torch.zeros((run.train.micro_batch, width), dtype=torch.int64) for _ in range(number)]
