"""Put a run together on this rank: device, groups, model, data, engine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from megads.checkpoint.format.folders import remove_unfinished
from megads.checkpoint.format.shard_layout import ShardLayout, saved_parameters
from megads.checkpoint.function.record import Record
from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.checkpoint.resume.progress import Progress
from megads.cluster.ranks import RankInfo
from megads.comm.groups import Groups, group_timeout_s, join_ranks
from megads.comm.rng import seed_everything
from megads.config.schema import RunConfig
from megads.data.loading.batches import Batches, Prefetch, read_ahead
from megads.data.tokenizers.build import load_tokenizer
from megads.device.determinism import make_deterministic
from megads.device.vendor import Vendor
from megads.engine.base import Engine
from megads.engine.build import make_engine
from megads.plan.places.peaks import peak_tflops
from megads.train.attention_check import report_attention
from megads.train.compilation import compile_run
from megads.train.memory_check import check_memory
from megads.train.splits import index_team, read_splits, task_splits


@dataclass
class Training:
    """One rank of a run, ready to train."""

    run: RunConfig
    run_dir: Path
    groups: Groups
    vendor: Vendor
    device: torch.device
    engine: Engine
    splits: dict[str, Any]
    peak_tflops: float | None = None  # dense, of one device in the run's dtype
    progress: Progress = field(default_factory=Progress)
    timings: dict[str, float] = field(default_factory=dict)
    data: str = ""  # see data_fingerprint
    hosts: Sequence[str] = ()  # of every rank
    inherited: dict[str, Any] = field(default_factory=dict)  # what is known of the model that was once imported
    function: Record | None = None  # conventions and the batch of this run's checkpoints, once they are known

    @cached_property
    def parameters(self) -> dict[str, ShardLayout]:
        """Every parameter of the model that is trained, those of other pipeline stages too."""
        return saved_parameters(self.run.model)

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return checkpoint_folder(self.run, self.run_dir)

    def micro_batches_of(self, batch: int) -> int:
        """Return the micro-batches that each data-parallel rank contributes to a step of ``batch`` samples."""
        return batch // (self.run.train.micro_batch * self.groups.data_size)

    def batches(self, split: str, consumed: int = 0) -> Prefetch:
        """Return this rank's micro-batches of ``split`` from sample ``consumed`` on, read ahead."""
        run = self.run
        batches = Batches(
            self.splits[split],
            micro_batch=run.train.micro_batch,
            data_rank=self.groups.data_rank,
            data_size=self.groups.data_size,
            consumed=consumed,
        )
        per_step, width = run.train.grad_acc_steps, self.splits[split].width
        return read_ahead(batches, run.data.num_workers, per_step, width, self.engine.prepare)


def set_up(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Training:
    """Build everything a rank needs, in the order in which failures are cheapest."""
    if run.stability.deterministic:
        make_deterministic()
    timings: dict[str, float] = {}
    with timed(timings, "groups"):
        row, device, groups = join_ranks(run, info, env, group_timeout_s(run.launch.timeout_s))
        check_memory(run, row, device, groups)
    seed_everything(run.train.seed)
    with timed(timings, "data"):
        splits, data = task_splits(run) if run.finetune.task else read_splits(run, index_team(groups))
    with timed(timings, "engine"):
        gc.collect()
        gc.freeze()
        engine = make_engine(run, groups, device, end_of_document(run))
        report_attention(run, engine.module, device, speaks=groups.rank == 0)
        compile_run(run, engine, run_dir, groups, device)
        # What is there by now stays to the end: who looks for garbage need not walk through it, 0.1 s each
        # time, for which the other ranks would wait.
        gc.collect()
        gc.freeze()
    peak = peak_tflops(row.device_name(device), row.product_dtype(run.train.dtype), env, row.units(device))
    training = Training(
        run, run_dir, groups, row, device, engine, splits, peak, timings=timings, data=data, hosts=groups.hosts
    )
    if groups.rank == 0:
        remove_unfinished(training.checkpoints)
    return training


def end_of_document(run: RunConfig) -> int | None:
    """Return the token that ends a document, None where no setting needs it."""
    data = run.data
    is_needed = data.eod_mask_loss or data.reset_position_ids or data.reset_attention_mask
    return load_tokenizer(run).eod if is_needed and not run.finetune.is_chat else None


@contextmanager
def timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Note under ``name`` how many seconds a block took."""
    started = time.perf_counter()
    yield
    timings[name] = time.perf_counter() - started
