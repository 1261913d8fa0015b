"""The real loop, loader and checkpoints on real groups, around an engine that only writes down its tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast
from unittest.mock import create_autospec

import torch
import torch.distributed as dist
from torch import nn

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.owned_shard import OwnedShard
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.data.datasets import build_splits
from megads.data.sources.file_list import Shard
from megads.device.vendor import vendor
from megads.engine.base import StepResult
from megads.train.fault.stop import StopRequest
from megads.train.loop import Loop
from megads.train.resume import resume
from megads.train.setup import Training
from megads.train.step_reporter import StepReporter
from tests.ranks import groups_of

SEQ, VOCAB, ITERATIONS = 12, 100, 40
SETTINGS = {
    "model.num_layers": "4",
    "model.hidden_size": "16",
    "model.num_heads": "4",
    "model.seq_length": str(SEQ),
    "model.vocab_size": str(VOCAB),
    "train.global_batch": "16",
    # 4 samples a step at first, then 8, 12 and 16, and two ranges that are skipped.
    "train.rampup_batch_size": "4 4 60",
    "train.skip_iterations": "4-6 15-15",
    "train.train_iters": str(ITERATIONS),
    "train.eval_interval": "0",
    "train.dtype": "fp32",
    "data.tokenizer_type": "NullTokenizer",
    "checkpoint.save_interval": "0",
    "stability.rounding_interval": "0",  # no weights
    "checkpoint.replay_rows": "0",
    "stability.replica_interval": "0",
}

Steps = dict[int, list[list[int]]]
"""Iteration -> the tokens of its samples, in order."""


class Killed(Exception):
    """This start of the run is over."""


class Recorder:
    """An engine without a model: it keeps what every rank is given, and ends the start when it is told to."""

    def __init__(self, groups: Any, die_after: int):
        self.module = nn.Module()
        self.groups, self.steps_left = groups, die_after
        self.seen: list[list[list[int]]] = []

    def prepare(self, batch: torch.Tensor) -> torch.Tensor:
        return batch

    def train_step(self, batches: list[torch.Tensor], lr: float, **rates: object) -> StepResult:
        if self.steps_left == 0:
            raise Killed
        self.steps_left -= 1
        self.seen.append(together([batch.tolist() for batch in batches], self.groups))
        return StepResult(torch.tensor(1.0), 1.0, False, 1.0)

    @property
    def state(self) -> Any:
        return self

    def owned_shards(self) -> Any:
        # A checkpoint without a weight is none, and a run does not resume from one without moments.
        if self.groups.rank == 0:
            kinds = ("weight", "exp_avg", "exp_avg_sq")
            yield OwnedShard("head.weight", ShardLayout((1, 1)), 0, {kind: torch.zeros(1) for kind in kinds})

    def sync_from_masters(self) -> None:
        pass

    def whole_states(self) -> Any:
        return iter(())

    def load_whole_states(self, state_of: Any) -> None:
        pass

    def reset_optimizer(self) -> None:
        for kind in ("exp_avg", "exp_avg_sq"):
            if kind in getattr(self, "tensors", {}):
                self.tensors[kind].zero_()

    def scalars(self) -> dict[str, float]:
        return {}

    def load_scalars(self, values: Any) -> None:
        assert not values


def together(mine: list[list[list[int]]], groups: Any) -> list[list[int]]:
    """Return the samples of a step over all ranks: micro-batch by micro-batch, data rank by data rank.

    Raises:
        AssertionError: two ranks of the same place along the data axis were given different samples.
    """
    everyone: list[Any] = [(groups.data_rank, mine)]
    if groups.grid.world_size > 1:
        everyone = everyone * groups.grid.world_size
        dist.all_gather_object(everyone, (groups.data_rank, mine))
    by_rank: dict[int, Any] = {}
    for data_rank, given in everyone:
        assert by_rank.setdefault(data_rank, given) == given, f"data rank {data_rank} reads different samples"
    blocks = zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True)
    return [sample for block in blocks for batch in block for sample in batch]


def settings(grid: dict[str, int], micro_batch: int, workers: int, cache: Path, **more: str) -> RunConfig:
    """Return the derived run of ``grid``; ``cache`` is for its sample indices."""
    names = {"tensor": "tensor", "pipe": "pipeline", "seq": "sequence"}
    degrees = {f"parallel.{names[axis]}": str(size) for axis, size in grid.items() if axis != "data"}
    asked = {"train.micro_batch": micro_batch, "data.num_workers": workers, "data.cache_dir": cache}
    overrides = {**SETTINGS, **{name: str(value) for name, value in asked.items()}, **degrees, **more}
    resolved = resolve(None, env={}, overrides=overrides, machine="generic", root=Path(__file__).parents[2])
    return derive(resolved, num_hosts=1, ranks_per_host=math.prod(grid.values()), vocab_size=0).run


def noting(training: Training, numbers: list[int]) -> StepReporter:
    """Return a reporter that takes note of the iterations a loop reports; its calls are checked as the real one's."""
    reporter = create_autospec(StepReporter, instance=True)
    reporter.step.side_effect = lambda facts: numbers.append(training.progress.iteration)
    return cast("StepReporter", reporter)


def one_start(run: RunConfig, shards: list[Shard], folder: Path, grid: dict[str, int], die_after: int = -1) -> Steps:
    """Train in ``folder`` from its newest checkpoint on; return the tokens of every step, the same on every rank.

    Args:
        run: of :func:`settings`.
        shards: its data.
        folder: of the run.
        grid: of its ranks.
        die_after: steps; in the next one the start ends as if it were killed. -1: it does not.
    """
    groups = groups_of(**grid)
    device = torch.device("cpu")
    engine = Recorder(groups, die_after)
    row, splits = vendor({"MEGADS_DEVICE": "cpu"}), build_splits(run, shards)
    training = Training(run, folder, groups, row, device, engine, splits)  # type: ignore[arg-type]
    training.parameters = {"head.weight": ShardLayout((1, 1))}  # all that the recorder has
    resume(training)
    loop = Loop(training, StopRequest(folder, groups, device, in_place=False), None)
    loop.probes.is_first = False  # the recorder has no memory to look at
    numbers: list[int] = []
    if groups.rank == 0:
        loop.reporter = noting(training, numbers)
    first = training.progress.iteration
    try:
        loop.run()
    except Killed:
        assert die_after >= 0
    done = [i for i in range(first + 1, ITERATIONS + 1) if not loop.skips.last_of(i)]
    assert groups.rank != 0 or numbers == done[: len(engine.seen)]
    return dict(zip(done, engine.seen, strict=False))
