"""Models that are trained for a moment on random tokens, through the engine that a run uses."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from megads.bench.session import Bench
from megads.comm.rng import seed_everything
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.device.measuring import free_cached
from megads.engine.base import Engine, StepResult
from megads.engine.build import make_engine

LEARNING_RATE = 1e-3
SMALL = {
    "model.num_layers": "2",
    "model.hidden_size": "64",
    "model.num_heads": "4",
    "model.num_kv_heads": "2",
    "model.ffn_hidden_size": "0",
    "model.seq_length": "32",
    "model.vocab_size": "256",
}


@dataclass(frozen=True)
class Model:
    """A preset, and what of it is cut."""

    preset: str
    changes: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.preset


TINY = Model("7B", SMALL, "7B, 2 layers of 64")


def settings(
    root: Path, world_size: int, model: Model = TINY, dtype: str = "fp32", micro_batch: int = 2, steps: int = 2
) -> RunConfig:
    """Return the derived run of ``model`` on all ranks: data parallel, ``steps`` micro-batches per step.

    Args:
        root: the checkout.

    Raises:
        ConfigError: the model does not fit the ranks.
    """
    given = {
        "train.dtype": dtype,
        "train.micro_batch": str(micro_batch),
        "train.grad_acc_steps": str(steps),
        "train.global_batch": "0",
        "train.train_iters": "100",
        "optim.lr": str(LEARNING_RATE),
        "optim.min_lr": "0",
        "parallel.tensor": "1",
        "parallel.pipeline": "1",
        "parallel.sequence": "1",
        "checkpoint.save_interval": "0",
        "model.hidden_dropout": "0",
        "model.attention_dropout": "0",
        **model.changes,
    }
    asked = resolve(model.preset, env={}, overrides=given, machine="generic", root=root)
    return derive(asked, num_hosts=1, ranks_per_host=world_size, vocab_size=0).run


def make(bench: Bench, run: RunConfig) -> Engine:
    """Return the engine of ``run``, with its initial weights. Collective."""
    seed_everything(run.train.seed)
    return make_engine(run, bench.groups, bench.device)


def tokens(run: RunConfig, step: int, data_rank: int) -> list[Tensor]:
    """Return this rank's micro-batches of ``step``: random, but the same samples on any number of ranks."""
    train = run.train
    generator = torch.Generator().manual_seed(1234 + step)
    shape = (train.grad_acc_steps, run.parallel.data, train.micro_batch, run.model.seq_length + 1)
    samples = torch.randint(0, run.model.vocab_size, shape, generator=generator)
    return list(samples[:, data_rank])


def release(bench: Bench) -> None:
    """Free the memory of engines that nobody refers to any more."""
    gc.collect()
    free_cached(bench.vendor)


def train(bench: Bench, engine: Engine, run: RunConfig, steps: int, first: int = 0) -> list[StepResult]:
    """Take ``steps`` steps from number ``first`` on, and return their results. Collective."""
    data_rank = bench.groups.data_rank
    size = run.train.global_batch
    results = []
    for step in range(first, first + steps):
        results.append(engine.train_step(tokens(run, step, data_rank), LEARNING_RATE, first_sample=step * size))
    return results
