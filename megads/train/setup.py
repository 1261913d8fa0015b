"""Put a run together on this rank: device, groups, model, data, engine, and what was saved before."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from megads.checkpoint.layout import Found, remove_unfinished
from megads.checkpoint.match import changes, check_model, checkpoint_folder, shape_of
from megads.checkpoint.rng import pack, unpack
from megads.checkpoint.state import Progress, Snapshot, find_together, load_rng
from megads.checkpoint.state import load as load_checkpoint
from megads.checkpoint.state import save as save_checkpoint
from megads.cluster.ranks import RankInfo
from megads.config.schema import RunConfig
from megads.data.build import build_splits
from megads.data.demo import make_demo
from megads.data.file_list import read_file_list
from megads.data.loader import Batches
from megads.data.tokenize.run import load_tokenizer
from megads.device.peaks import peak_tflops
from megads.device.vendor import Vendor, vendor
from megads.dist.grid import Grid
from megads.dist.groups import Groups, init_distributed, make_groups
from megads.dist.place import find_local, meet
from megads.dist.rng import RngStreams, seed_everything
from megads.dist.timeout import group_timeout_s
from megads.engine.base import Engine
from megads.engine.make import make_engine
from megads.errors import CheckpointError
from megads.monitor.log import LOG


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
    rng: RngStreams
    peak_tflops: float | None = None  # dense, of one device in the run's dtype
    progress: Progress = field(default_factory=Progress)
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return checkpoint_folder(self.run, self.run_dir)

    @property
    def micro_batches_per_step(self) -> int:
        """Micro-batches that each data-parallel rank contributes to a step."""
        return self.run.train.grad_acc_steps

    def batches(self, split: str, consumed: int = 0) -> Batches:
        """Return this rank's micro-batches of ``split`` from sample ``consumed`` on."""
        return Batches(
            self.splits[split],
            micro_batch=self.run.train.micro_batch,
            data_rank=self.groups.data_rank,
            data_size=self.groups.data_size,
            consumed=consumed,
            wrap=split != "train",
        )

    def save(self) -> Path:
        """Write a checkpoint of this moment. Collective."""
        snapshot = Snapshot(
            progress=self.progress,
            parameters=((s.name, getattr(s.parameter, "shard", None), s.tensors) for s in self.engine.states()),
            scalars=self.engine.scalars(),
            rng=pack(self.rng.state_dict()),
            about={"model": shape_of(self.run), "torch": torch.__version__, "settings": self.run.model_dump()},
        )
        return save_checkpoint(self.checkpoints, snapshot, self.groups, self.run.checkpoint.keep)

    def resume(self) -> Path | None:
        """Go on from the newest checkpoint; return its path, or None when there is none. Collective."""
        found = find_together(self.checkpoints, self.groups)
        if found is None:
            return None
        check_model(found.path, found.manifest, shape_of(self.run))
        for line in [
            *(f"passed over: {text}" for text in found.broken),
            *changes(found.manifest["settings"], self.run),
        ]:
            if self.groups.rank == 0:
                LOG.warning("checkpoint %s", line)
        names = [name for name, _ in self.engine.module.named_parameters()]
        missing = set(names)
        for read in load_checkpoint(found.path, found.manifest, self.groups, names):
            self.engine.load(read)
            missing -= read.keys()
        if missing:
            raise CheckpointError(f"{found.path}: holds no {', '.join(sorted(missing))}; it is not a whole checkpoint")
        self.engine.load_scalars(found.manifest["scalars"])
        self.progress = Progress.read(found.manifest)
        self.resume_generators(found)
        return found.path

    def resume_generators(self, found: Found) -> None:
        """Set the generators as they were; in another layout, from the seed and the iteration."""
        packed = load_rng(found.path, found.manifest, self.groups)
        if packed is not None:
            self.rng.load_state_dict(unpack(packed))
            return
        iteration = self.progress.iteration
        self.rng.load_state_dict(
            seed_everything(seed_at(self.run.train.seed, iteration), self.groups, self.device).state_dict()
        )
        if self.groups.rank == 0 and (self.run.model.hidden_dropout or self.run.model.attention_dropout):
            was = found.manifest["layout"]
            LOG.warning(
                "checkpoint of TP=%d PP=%d SP=%d: its random numbers belong to other ranks; "
                "dropout starts anew from SEED=%d and iteration %d",
                *(was[axis] for axis in ("tensor", "pipe", "seq")),
                self.run.train.seed,
                iteration,
            )


def seed_at(seed: int, iteration: int) -> int:
    """Return a seed for generators that start at ``iteration``, far from those of other iterations."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{iteration}".encode(), digest_size=6).digest(), "little")


def set_up(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Training:
    """Build everything a rank needs, in the order in which failures are cheapest."""
    timings: dict[str, float] = {}
    with timed(timings, "groups"):
        row, device, groups = join_ranks(run, info, env, group_timeout_s(run.launch.timeout_s))
    rng = seed_everything(run.train.seed, groups, device)
    with timed(timings, "data"):
        splits = build_splits(run, read_shards(run))
    with timed(timings, "engine"):
        engine = make_engine(run, groups, rng, device, end_of_document(run))
    peak = peak_tflops(row.device_name(device), run.train.dtype, env)
    training = Training(run, run_dir, groups, row, device, engine, splits, rng, peak, timings=timings)
    if groups.rank == 0:
        remove_unfinished(training.checkpoints)
    return training


def join_ranks(
    run: RunConfig, info: RankInfo, env: Mapping[str, str], wait_s: float = 0.0
) -> tuple[Vendor, torch.device, Groups]:
    """Meet the other ranks, claim this rank's device, and make its groups.

    Ranks meet first: which device is a rank's may hang on who else is on its host. The
    longest wait in a collective is ``wait_s``, or ``launch.timeout_s``.
    """
    wait_s = wait_s or run.launch.timeout_s
    row = vendor(env)
    store = meet(info, run.launch.timeout_s, env)
    device = row.device(find_local(info, store).local_rank)
    init_distributed(row.backend, info, wait_s, device=device, store=store)
    grid = Grid(run.parallel.pipeline, run.parallel.data, run.parallel.sequence, run.parallel.tensor)
    return row, device, make_groups(grid, info.rank, timeout_s=wait_s)


def read_shards(run: RunConfig) -> list[Any]:
    """Return the run's data: the lines of its list, or the demo corpus that the launcher made."""
    if run.data.file_list:
        return list(read_file_list(Path(run.data.file_list)))
    return list(make_demo(run, _no_progress))


def end_of_document(run: RunConfig) -> int | None:
    """Return the token whose followers do not count in the loss, None where all count."""
    return load_tokenizer(run).eod if run.data.eod_mask_loss else None


def _no_progress(what: str, done: int, total: int) -> None:
    """Ranks find the demo corpus ready; only the launcher shows it being made."""


class timed:
    """Note under ``name`` how many seconds a block took."""

    def __init__(self, timings: dict[str, float], name: str, clock: Callable[[], float] = time.perf_counter):
        self.timings, self.name, self.clock = timings, name, clock

    def __enter__(self) -> None:
        self.started = self.clock()

    def __exit__(self, *error: object) -> None:
        self.timings[self.name] = self.clock() - self.started
