"""Weights are there when a layer begins, on their way before, and gone behind it."""

from __future__ import annotations

import pytest

from tests.engine.plain import NATIVE, batches, make_engine, rate, settings, train, trains_like_one_rank
from tests.ranks import groups_of, run_ranks

DP2 = {"data": 2}


def _engine(grid=None, **changes: str):
    grid = grid or DP2
    run, groups = settings(grid, **{"model.num_layers": "4", **NATIVE, **changes}), groups_of(**grid)
    return make_engine(run, groups), run, groups


def _events(engine) -> list[str]:
    """Have gathers, frees and passes of layers noted."""
    events: list[str] = []
    gatherer = engine.gatherer
    begin, free = gatherer._begin, gatherer._free

    def noted_begin(index: int) -> None:
        events.append(f"gather {gatherer.units[index].name}")
        begin(index)

    def noted_free(index: int) -> None:
        if index in gatherer.present:
            events.append(f"free {gatherer.units[index].name}")
        free(index)

    gatherer._begin, gatherer._free = noted_begin, noted_free
    for name, layer in engine.chunks[0].layers.items():
        layer.register_forward_pre_hook(lambda module, args, name=name: events.append(f"forward {name}"))
        layer.register_full_backward_hook(lambda module, *args, name=name: events.append(f"behind {name}"))
    return events


def _gathers_are_one_layer_ahead() -> None:
    engine, run, groups = _engine(**{"parallel.zero_stage": "3", "train.micro_batch": "4", "train.grad_acc_steps": "1"})
    events = _events(engine)
    engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    where = {event: events.index(event) for event in events}
    last = {event: i for i, event in enumerate(events)}
    for i in range(4):
        gather = f"gather layers.{i}"
        assert where[gather] < where[f"forward {i}"]
        if i:
            assert where[gather] < where[f"forward {i - 1}"] or where[gather] == where[f"forward {i - 1}"] - 1
            assert where[f"free layers.{i - 1}"] < where[f"forward {i}"]
    # The last layer stays for its backward pass; the others come back, one ahead of it.
    assert [events.count(f"gather layers.{i}") for i in range(4)] == [2, 2, 2, 1]
    assert [events.count(f"free layers.{i}") for i in range(4)] == [2, 2, 2, 1]
    for i in range(3):
        assert last[f"gather layers.{i}"] < last[f"free layers.{i + 1}"] < last[f"free layers.{i}"]
    for name in ("embedding", "output"):
        assert events.count(f"gather {name}") == events.count(f"free {name}") == 1
    assert not engine.gatherer.present
    assert all(unit.weights.untyped_storage().nbytes() == 0 for unit in engine.units)


@pytest.mark.dist
def test_gathers_are_one_layer_ahead_and_freed_behind():
    run_ranks(2, _gathers_are_one_layer_ahead)


def _at_most_two_layers_are_there(changes: dict[str, str], most: int) -> None:
    engine, run, groups = _engine(**{"parallel.zero_stage": "3", **changes})
    found: list[int] = []

    def look(*_: object) -> None:
        found.append(sum(engine.gatherer.is_layer[index] for index in engine.gatherer.present))

    for layer in engine.chunks[0].layers.values():
        layer.register_forward_pre_hook(look)
        layer.register_forward_hook(look)
    engine.reducer.issued = look
    engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    engine.eval_losses(batches(run, 0, groups.data_rank))
    assert max(found) == most
    assert not engine.gatherer.present


@pytest.mark.dist
@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 2),
        ({"deepspeed.prefetch_bucket_size": "0"}, 1),
        ({"recompute.granularity": "full"}, 2),
    ],
    ids=["ahead", "no-prefetch", "recomputed"],
)
def test_few_layers_are_there_at_a_time(changes, most):
    run_ranks(2, _at_most_two_layers_are_there, changes, most)


def _updates_are_waited_for_where_they_are_used(stage: str) -> None:
    engine, run, groups = _engine(**{"parallel.zero_stage": stage})
    parts = batches(run, 0, groups.data_rank)
    engine.train_step(parts, rate(0))
    gatherer = engine.gatherer
    assert list(gatherer.under_way) == list(range(len(engine.units)))
    open_at: list[int] = []
    for layer in engine.chunks[0].layers.values():
        layer.register_forward_pre_hook(lambda *_: open_at.append(len(gatherer.under_way)))
    engine.train_step(parts, rate(1))
    # The first layer waits for the embedding and itself alone.
    assert open_at[:4] == [4, 3, 2, 1]
    assert open_at[4:8] == [0] * 4
    engine.module  # noqa: B018 - whoever asks for it sees all weights
    assert not gatherer.under_way


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["1", "2"])
def test_updates_are_waited_for_where_they_are_used(stage):
    run_ranks(2, _updates_are_waited_for_where_they_are_used, stage)


HPZ = {"parallel.zero_stage": "3", "deepspeed.hpz_partition_size": "2"}


def _second_partitions_keep_gathers_inside() -> None:
    import torch.distributed as dist

    engine, run, groups = _engine({"data": 4}, **HPZ)
    sizes: list[tuple[int, int]] = []
    gather = dist.all_gather_into_tensor

    def note(found, given, group=None, **more):
        sizes.append((dist.get_world_size(group), found.numel()))
        return gather(found, given, group=group, **more)

    held: list[int] = []
    engine.before_updates(lambda *_: held.append(engine.memory_usage().weights))
    dist.all_gather_into_tensor = note
    try:
        train(engine, run, groups, 0, 2)
    finally:
        dist.all_gather_into_tensor = gather
    units = len(engine.units)
    # Of each step, one gather of every unit leaves the pair of ranks.
    assert [size for size, _ in sizes].count(4) == 2 * units
    assert [size for size, _ in sizes].count(2) == 2 * 3
    assert held == [sum(unit.numel for unit in engine.units) * 4 * 3 // 4] * 2


@pytest.mark.dist
def test_second_partitions_keep_gathers_inside():
    run_ranks(4, _second_partitions_keep_gathers_inside)


@pytest.mark.dist
@pytest.mark.parametrize("more", [{}, {"recompute.granularity": "full"}], ids=["plain", "recomputed"])
def test_second_partitions_train_like_one_rank(more):
    run_ranks(4, trains_like_one_rank, {"data": 4}, {**NATIVE, **HPZ, **more})
