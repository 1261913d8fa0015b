"""A step with NaN or Inf: operator, layer, rank and micro-batch are named, and one rank computes it again."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megads.config.run_folder import save_config
from megads.train.numbers.kept import read_kept
from megads.train.numbers.replay import replay
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, state_of
from tests.ranks import run_ranks

CHANGES = {
    "model.num_layers": "2",
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "train.train_iters": "4",
    "checkpoint.save_interval": "0",
    "stability.nonfinite_keep": "weights",
    "data.num_workers": "0",
}


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def explode(loop: Any, layer: str, micro_batch: int, step: int) -> None:
    """Have the MLP of a layer overflow in one micro-batch of a step, when it is computed again too."""
    training = loop.training
    chunks = getattr(training.engine, "chunks", None) or [training.engine.module]
    named = {name: each for chunk in chunks for name, each in chunk.named_modules()}
    module, per_step = named.get(f"layers.{layer}.mlp"), training.run.train.grad_acc_steps
    if module is None:
        return
    forward, calls = module.forward, [0]

    def wrong(x: Tensor) -> Tensor:
        at, calls[0] = calls[0], calls[0] + 1
        is_now = training.progress.iteration + 1 >= step and at % per_step == micro_batch
        return forward(x * torch.exp(x.detach().abs().max() * 0 + 100) if is_now else x)

    module.forward = wrong


def _found(layout: Layout, folder: str, rank: int, layer: str, micro_batch: int, changes: Any) -> None:
    loop = loop_of(layout, Path(folder), **{**CHANGES, **changes})
    lines = Lines()
    logging.getLogger("megads").addHandler(lines)
    training = loop.training
    training.engine = training.engine._real
    training.hosts = [f"node{each}" for each in range(layout.ranks)]
    if training.groups.rank == rank:
        explode(loop, layer, micro_batch, 2)
    states: list[str] = []
    step = loop.step

    def stepped(batches: Any) -> None:
        states.append(state_of(loop))
        step(batches)

    loop.step = stepped
    try:
        with training.batches("train") as batches:
            loop.step(batches)
            loop.step(batches)
            after = state_of(loop)
            scalars = training.engine.state.scalars()
    finally:
        logging.getLogger("megads").removeHandler(lines)
    assert training.progress.skipped_iterations == 1
    assert scalars["skipped_steps"] == 1
    assert after != states[0]
    if training.groups.rank == 0:
        (line,) = [each for each in lines.lines if "first not finite" in each]
        told = f"step 2: first not finite on rank {rank} (node{rank}): Inf in "
        assert line.startswith(told), line
        assert f" in the forward pass of layers.{layer}.mlp, micro-batch {micro_batch}, which " in line, line
        assert line.endswith(f"replay it on one rank: megads replay {folder}/nonfinite-0000002"), line
        kept = read_kept(Path(folder) / "nonfinite-0000002")
        assert (kept.iteration, kept.rank, kept.micro_batches) == (2, rank, training.run.train.grad_acc_steps)
        assert (Path(folder) / "nonfinite-0000002/checkpoints/iter_0000001/manifest.json").is_file()
        save_config(training.run, {}, Path(folder) / "config.yaml")


LAYOUTS: list[Any] = [
    (Layout(engine="native"), 0, "1", 3),
    (Layout(dp=2, zero=1, engine="native"), 1, "0", 2),
    (Layout(tp=2, zero=1, engine="native"), 1, "1", 1),
    (Layout(dp=2, zero=3, engine="native"), 1, "1", 0),
    (Layout(pp=2, engine="native"), 1, "1", 2),
    (Layout(dp=2, zero=2), 1, "0", 1),
]


@pytest.mark.dist
@pytest.mark.parametrize(("layout", "rank", "layer", "micro_batch"), LAYOUTS, ids=[str(case[0]) for case in LAYOUTS])
def test_the_rank_the_layer_and_the_micro_batch_are_named(tmp_path, layout, rank, layer, micro_batch):
    run_ranks(layout.ranks, _found, layout, str(tmp_path / "run"), rank, layer, micro_batch, {})


def _weights(layout: Layout, folder: str) -> None:
    """A weight that is huge overflows by itself, in the run and on one rank."""
    loop = loop_of(layout, Path(folder), **CHANGES)
    training = loop.training
    training.engine = training.engine._real
    with training.batches("train") as batches:
        loop.step(batches)
        for shard in training.engine.state.owned_shards():
            if shard.name == "layers.1.mlp.down.weight":
                shard.tensors["weight"].fill_(3e38)
        training.engine.state.sync_from_masters()
        loop.step(batches)
    if training.groups.rank == 0:
        save_config(training.run, {}, Path(folder) / "config.yaml")


@pytest.mark.dist
@pytest.mark.parametrize("layout", [Layout(tp=2, dp=2, engine="native"), Layout(pp=2, engine="native")], ids=str)
def test_one_rank_finds_the_same_operator_again(tmp_path, layout):
    folder = tmp_path / "run"
    run_ranks(layout.ranks, _weights, layout, str(folder))
    found = replay(folder / "nonfinite-0000002", {"MEGADS_DEVICE": "cpu"})
    assert found.is_exact
    assert found.origin is not None
    assert (found.origin.layer, found.origin.phase) == (found.kept.origin.layer, "forward")
    assert found.origin.layer.startswith("layers.1.mlp")
    assert found.origin.operator == found.kept.origin.operator
    assert not math.isfinite(found.loss)
