"""What DeepSpeed's pipeline does around a stage: the size of gradients, groups, and output."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.engine.deepspeed.test_pipeline import GPT, KIND_IDS, LLAMA, MODELS, ZERO, run_grid
from tests.engine.plain import batches, eval_loss, make_engine, settings, train
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks


def _gradients_have_the_right_size(grid, model, changes) -> None:
    """Adam hides the scale of a gradient; its first moment after one step from zero does not."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from megads.parallel.tensor import take_shard

    run, groups = settings(grid, **MODELS[model], **{"optim.clip_grad": "0"}, **changes), groups_of(**grid)
    whole = build_model(settings({}, **MODELS[model]), Groups(Grid(), 0))
    samples = torch.cat(batches(settings({}), 0, 0))
    whole(samples[:, :-1], samples[:, 1:]).backward()
    expected = {name: weight.grad for name, weight in whole.named_parameters()}
    engine = make_engine(run, groups)
    engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
    for state in engine.state.by_parameter():
        ours = state.tensors["exp_avg"] / (1 - run.optim.adam_beta1)
        theirs = take_shard(expected[state.name], state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-7, msg=lambda text, name=state.name: f"{name} {text}"
        )


@pytest.mark.dist
@parametrize_pairs(stages=[2, 4], model=[*MODELS], steps=[1, 4], changes=dict(zip(KIND_IDS, ZERO, strict=False)))
def test_gradients_of_every_stage_have_the_right_size(stages, model, steps, changes):
    batch = {"train.micro_batch": str(8 // steps), "train.grad_acc_steps": str(steps)}
    run_grid(_gradients_have_the_right_size, {"pipe": stages}, model, {**batch, **changes})


def _groups_made(grid, folder) -> None:
    import torch.distributed as dist

    made = []
    new_group = dist.new_group

    def counted(*args, **kwargs):
        made.append(args)
        return new_group(*args, **kwargs)

    run, groups = settings(grid, **GPT), groups_of(**grid)
    groups.process_group("tensor")  # of one rank; made once per grid, whatever the engine
    dist.new_group = counted
    try:
        engine = make_engine(run, groups)
        engine.train_step(batches(run, 0, groups.data_rank), 1e-2)
        eval_loss(engine, batches(run, 0, groups.data_rank))
    finally:
        dist.new_group = new_group
    (Path(folder) / str(groups.rank)).write_text(str(len(made)))


@pytest.mark.dist
@pytest.mark.parametrize(
    "grid",
    [
        {"pipe": 2},
        {"pipe": 2, "data": 2},
        {"pipe": 4},
        pytest.param({"pipe": 2, "data": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_an_engine_makes_no_groups_however_large_the_world(grid, tmp_path):
    run_grid(_groups_made, grid, str(tmp_path))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["0"] * math.prod(grid.values())


def _prints_nothing(grid, folder) -> None:
    """What DeepSpeed would print goes through sys.stdout of this process."""
    import contextlib

    run, groups = settings(grid, **LLAMA), groups_of(**grid)
    with open(Path(folder) / str(groups.rank), "w") as file, contextlib.redirect_stdout(file):
        train(make_engine(run, groups), run, groups, 0, 2)


@pytest.mark.dist
def test_nothing_is_printed(tmp_path):
    run_grid(_prints_nothing, {"pipe": 2}, str(tmp_path))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["", ""]


def _messages_meet(stages: int) -> None:
    """Both ends of a link exchange in one call where one sends up and the other down, and never two one way."""
    import megads.timing.collectives as collectives

    grid = {"pipe": stages}
    run, groups = settings(grid, **{"model.num_layers": "4"}), groups_of(**grid)
    engine = make_engine(run, groups)
    exchange, seen = collectives.exchange, []

    def note(sent: Any, received: Any, group: Any) -> None:
        seen.append((len(sent), len(received)))
        exchange(sent, received, group)

    collectives.exchange = note
    try:
        engine.train_step(batches(run, 0, 0), 1e-3)
    finally:
        collectives.exchange = exchange
    links = (groups.pipe_rank > 0) + (groups.pipe_rank < stages - 1)
    count = run.train.grad_acc_steps * links
    assert [sum(column) for column in zip(*seen, strict=True)] == [count, count]
    assert set(seen) <= {(1, 1), (1, 0), (0, 1)}
    assert (1, 1) in seen


@pytest.mark.dist
@pytest.mark.parametrize("stages", [2, 4])
def test_messages_up_and_down_meet_in_one_call(stages):
    run_ranks(stages, _messages_meet, stages)
