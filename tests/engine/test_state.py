"""What a rank answers for: every number of the model once, and everything else follows from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.progress import Progress
from tests.engine.plain import ENGINES, NATIVE, batches, make_engine, on, settings, train, working
from tests.pairs import parametrize_pairs
from tests.parity.checkpoints import save
from tests.ranks import groups_of, run_ranks

GPT = {"model.family": "gpt"}
ALL = {"deepspeed.param_persistence_threshold": "0"}
THREE = {"train.global_batch": "6", "train.grad_acc_steps": "1"}
CASES: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "dp3-zero0": ({"data": 3}, {"parallel.zero_stage": "0", **THREE}),
    "dp3-zero1": ({"data": 3}, {"parallel.zero_stage": "1", **THREE}),
    "dp3-zero2": ({"data": 3}, {"parallel.zero_stage": "2", **THREE}),
    "dp3-zero3": ({"data": 3}, {"parallel.zero_stage": "3", **THREE, **ALL}),
    "dp2-bf16": ({"data": 2}, {"parallel.zero_stage": "1", "train.dtype": "bf16"}),
    "dp2-offload": ({"data": 2}, {"parallel.zero_stage": "2", "deepspeed.offload_optimizer": "cpu"}),
    "tp2-sp2": ({"tensor": 2, "seq": 2}, {"parallel.zero_stage": "1", **GPT, "model.num_kv_heads": "2"}),
    "pp2-tp2": ({"pipe": 2, "tensor": 2}, {"parallel.zero_stage": "0", **GPT}),
    "pp2-dp2": ({"pipe": 2, "data": 2}, {"parallel.zero_stage": "1", **GPT}),
}
VIRTUAL = (
    {"pipe": 2, "data": 2},
    {"parallel.zero_stage": "2", **GPT, **NATIVE, "model.num_layers": "4", "parallel.virtual_stages": "2"},
)


def _covers_the_model_once(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch
    import torch.distributed as dist

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    # Not collective, and before the first step: here every rank but the first may still be on its way.
    mine = [(p.name, p.cut, p.first, p.count) for p in engine.state.owned_shards() if p.is_mine]
    assert all(
        tensor.dtype == torch.float32 for piece in engine.state.owned_shards() for tensor in piece.tensors.values()
    )
    everyone: list[Any] = [None] * groups.grid.world_size
    dist.all_gather_object(everyone, mine)
    table = parameters_of(run.model)
    seen: dict[str, int] = {}
    for name, cut, first, count in (piece for pieces in everyone for piece in pieces):
        assert cut == table[name].of(cut.rank, groups.tensor_size)
        assert count > 0
        assert first + count <= cut.count
        seen[name] = seen.get(name, 0) + count
    assert seen == {name: cut.count for name, cut in table.items()}


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_together_the_ranks_own_every_element_once(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _covers_the_model_once, grid, on(engine, changes))


def _everything_follows(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    rows = torch.arange(run.train.micro_batch * (run.model.seq_length + 1)).view(run.train.micro_batch, -1)
    engine.train_step([rows] * run.train.grad_acc_steps, 1e-3)
    for piece in engine.state.owned_shards():
        for number, tensor in enumerate(piece.tensors.values(), start=1):
            # Of every number where it is in the slice, so that a shift shows.
            tensor.copy_((torch.arange(piece.first, piece.first + piece.count) % 251 + number) / 256)
    engine.state.sync_from_masters()
    for state in engine.state.by_parameter():
        for number, (kind, tensor) in enumerate(state.tensors.items(), start=1):
            expected = (torch.arange(tensor.numel()) % 251 + number) / 256
            assert torch.equal(tensor.flatten(), expected), f"{state.name} {kind}"
    for name, weight in working(engine).items():
        expected = (torch.arange(weight.numel()) % 251 + 1) / 256
        assert torch.equal(weight.flatten().float(), expected.to(weight.dtype).float()), name


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_to_owned_shards_is_everywhere_after_a_sync(case, engine):
    grid, changes = CASES[case]
    run_ranks(math.prod(grid.values()), _everything_follows, grid, on(engine, changes))


@pytest.mark.dist
@pytest.mark.parametrize("check", [_covers_the_model_once, _everything_follows])
def test_virtual_stages_own_every_element_and_have_it_after_a_sync(check):
    run_ranks(4, check, *VIRTUAL)


def _begins_with_weights_alone(grid: dict[str, int], changes: dict[str, str], folder: Path) -> None:
    """The weights of a checkpoint in an engine that has stepped before: as if its optimizer had not."""
    import torch

    from megads.checkpoint.format.reader import Reader
    from megads.checkpoint.load import load_shards

    run, groups = settings(grid, **changes), groups_of(**grid)
    first, second = make_engine(run, groups), make_engine(run, groups)
    train(first, run, groups, 0, 2)
    path = save(first, run, groups, folder, Progress(2))
    untouched = second.state.scalars()
    train(second, run, groups, 3, 5)
    with Reader(path) as reader:
        load_shards(reader, second.state.owned_shards(), ("weight",))
    second.state.sync_from_masters()
    second.state.load_scalars(untouched)
    assert not any(
        t.any() for piece in second.state.owned_shards() for kind, t in piece.tensors.items() if kind != "weight"
    )
    before, theirs = working(second), working(first)
    assert all(torch.equal(before[name], weight) for name, weight in theirs.items())
    # Adam's first step moves every number by the rate, but for eps and what did not move at all.
    second.train_step(batches(run, 2, groups.data_rank), 1e-3)
    moved = torch.cat([(weight - before[name]).abs().flatten() for name, weight in working(second).items()])
    assert float(moved.median()) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.dist
@parametrize_pairs(stage=["0", "1", "3"], engine=ENGINES)
def test_weights_alone_begin_a_new_optimizer(stage, engine, tmp_path):
    changes = on(engine, {"parallel.zero_stage": stage, "optim.weight_decay": "0"})
    run_ranks(2, _begins_with_weights_alone, {"data": 2}, changes, tmp_path)
