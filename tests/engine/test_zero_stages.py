"""ZeRO 0 to 3 on every grid against a plain loop on one rank: sums, norms, weights, resuming, offload, hpZ."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import (
    ENGINES,
    HALF,
    STEPS,
    batches,
    eval_loss,
    goes_on_bitwise,
    make_engine,
    on,
    plain_loop,
    rate,
    saved,
    settings,
    take_over,
    train,
    trains_like_one_rank,
    working_weights,
)
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks

GRIDS: dict[str, dict[str, int]] = {"dp2": {"data": 2}, "dp4": {"data": 4}, "tp2dp2": {"tensor": 2, "data": 2}}
STAGES = ("0", "1", "2", "3")
SPLIT_ALL = {"parallel.zero_stage": "3", "deepspeed.param_persistence_threshold": "0"}
# Every stage, and ZeRO 3 with small parameters partitioned as well.
KINDS: dict[str, dict[str, str]] = {
    **{f"zero{stage}": {"parallel.zero_stage": stage} for stage in STAGES},
    "zero3-all": SPLIT_ALL,
}
HPZ = {**SPLIT_ALL, "deepspeed.hpz_partition_size": "2"}
SHARING = {name: changes for name, changes in KINDS.items() if name != "zero0"}


def has(engine: str, kind: str) -> bool:
    """Return whether ``kind`` is another than the ones before on ``engine``."""
    return engine == "deepspeed" or kind != "zero3-all"


def size(grid: dict[str, int]) -> int:
    return grid.get("tensor", 1) * grid.get("data", 1)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "kind", "engine"),
    [
        *(("dp2", kind, "deepspeed") for kind in KINDS),
        ("dp4", "zero1", "deepspeed"),
        ("tp2dp2", "zero0", "deepspeed"),
        *(("dp2", f"zero{stage}", "native") for stage in STAGES),
        ("dp4", "zero3", "native"),
        ("tp2dp2", "zero1", "native"),
    ],
)
def test_every_stage_trains_like_one_rank(grid, kind, engine):
    """In all other grids: tests/parity/test_layouts.py."""
    run_ranks(size(GRIDS[grid]), trains_like_one_rank, GRIDS[grid], on(engine, KINDS[kind]))


@pytest.mark.dist
@parametrize_pairs(lambda kind, engine, **_: has(engine, kind), kind=[*SHARING], steps=["1", "4"], engine=ENGINES)
def test_any_accumulation_gives_the_same(kind, steps, engine):
    batch = {"train.grad_acc_steps": steps, "train.micro_batch": str(4 // int(steps))}
    run_ranks(2, trains_like_one_rank, GRIDS["dp2"], on(engine, {**KINDS[kind], **batch}))


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("zero1", "deepspeed"),
        ("zero2", "deepspeed"),
        ("zero3-all", "deepspeed"),
        ("zero1", "native"),
        ("zero3", "native"),
    ],
)
def test_tied_embeddings_and_biases(kind, engine):
    gpt = {"model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
    run_ranks(4, trains_like_one_rank, GRIDS["tp2dp2"], on(engine, {**KINDS[kind], **gpt}))


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "engine"), [("zero2", "deepspeed"), ("zero3-all", "deepspeed"), ("zero1", "native"), ("zero2", "native")]
)
def test_buckets_smaller_than_a_parameter(kind, engine):
    small = {"deepspeed.reduce_bucket_size": "1000", "deepspeed.prefetch_bucket_size": "1000"}
    run_ranks(4, trains_like_one_rank, GRIDS["tp2dp2"], on(engine, {**KINDS[kind], **small}))


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "deepspeed") for kind in ("zero1", "zero2", "zero3-all")),
        *((kind, "native") for kind in ("zero0", "zero1", "zero2", "zero3")),
    ],
)
def test_three_ranks_share_what_three_does_not_divide(kind, engine):
    batch = {"train.global_batch": "6", "train.grad_acc_steps": "1"}
    run_ranks(3, _shares_unevenly, on(engine, {**KINDS[kind], **batch}))


def _shares_unevenly(changes: dict[str, str]) -> None:
    import torch

    run, groups = settings({"data": 3}, **changes), groups_of(data=3)
    engine = make_engine(run, groups)
    generator = torch.Generator().manual_seed(groups.rank)
    parts = [torch.randint(0, 100, (2, run.model.seq_length + 1), generator=generator)]
    first = [engine.train_step(parts, 1e-2) for _ in range(2)]
    again = make_engine(run, groups)
    take_over(again, engine)
    assert float(engine.train_step(parts, 1e-2).loss) == float(again.train_step(parts, 1e-2).loss)
    assert float(first[1].loss) < float(first[0].loss)


# Half precision


def half_is_near_fp32(grid: dict[str, int], changes: dict[str, str]) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}))
    results = train(make_engine(run, groups), run, groups)
    assert [float(r.loss) for r in results] == pytest.approx(losses, abs=5e-3)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=2e-2)


@pytest.mark.dist
@parametrize_pairs(
    lambda kind, engine, **_: has(engine, kind),
    grid=["dp2", "tp2dp2"],
    kind=[*SHARING],
    dtype=["bf16", "fp16"],
    engine=ENGINES,
)
def test_half_precision_is_near_fp32(grid, kind, dtype, engine):
    changes = {**KINDS[kind], "train.dtype": dtype, "optim.initial_loss_scale_power": "8"}
    run_ranks(size(GRIDS[grid]), half_is_near_fp32, GRIDS[grid], on(engine, changes))


def _accumulates_in_float32(changes: dict[str, str]) -> None:
    """64 equal micro-batches give the gradient of one; summed in bf16 they would not."""
    import torch

    grid = {"data": 2}
    groups = groups_of(**grid)
    norms = []
    for count in (1, 64):
        batch = {"train.grad_acc_steps": str(count), "train.global_batch": str(4 * count)}
        run = settings(grid, **changes, **batch)
        part = torch.randint(0, 100, (2, run.model.seq_length + 1), generator=torch.Generator().manual_seed(0))
        norms.append(make_engine(run, groups).train_step([part] * count, 0.0).grad_norm)
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.dist
@parametrize_pairs(
    lambda kind, engine, **_: has(engine, kind),
    kind=["zero1", "zero2", "zero3", "zero3-all"],
    dtype=["bf16", "fp16"],
    engine=ENGINES,
)
def test_gradients_accumulate_in_float32(kind, dtype, engine):
    changes = {**KINDS[kind], "train.dtype": dtype, "optim.initial_loss_scale_power": "8"}
    run_ranks(2, _accumulates_in_float32, on(engine, changes))


# State


@pytest.mark.dist
@parametrize_pairs(
    lambda kind, engine, **_: has(engine, kind),
    grid=["dp2", "tp2dp2"],
    kind=["zero2", "zero3", "zero3-all"],
    dtype=["fp32", "bf16", "fp16"],
    engine=ENGINES,
)
def test_a_new_engine_goes_on_bitwise(grid, kind, dtype, engine):
    changes = {**KINDS[kind], "train.dtype": dtype, "optim.initial_loss_scale_power": "24"}
    run_ranks(size(GRIDS[grid]), goes_on_bitwise, GRIDS[grid], on(engine, changes))


def moves_between(grid: dict[str, int], before: dict[str, str], after: dict[str, str]) -> None:
    groups = groups_of(**grid)
    losses, norms, _ = plain_loop(settings({}))
    first, second = settings(grid, **before), settings(grid, **after)
    writer = make_engine(first, groups)
    train(writer, first, groups, 0, HALF)
    reader = make_engine(second, groups)
    train(reader, second, groups, STEPS, STEPS + 1)  # what it has learned by itself must not survive
    take_over(reader, writer)
    results = train(reader, second, groups, HALF, STEPS)
    assert [float(r.loss) for r in results] == pytest.approx(losses[HALF:], rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms[HALF:], rel=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("before", "after"), [("zero1", "zero3"), ("zero3", "zero1"), ("zero0", "zero3-all"), ("zero3-all", "zero2")]
)
def test_what_one_stage_wrote_another_reads(before, after):
    """Of the other engine: tests/engine/test_engines.py."""
    run_ranks(4, moves_between, GRIDS["tp2dp2"], KINDS[before], KINDS[after])


# Steps that are skipped


def _bad_gradients_change_nothing(grid: dict[str, int], changes: dict[str, str]) -> None:
    import torch

    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    train(engine, run, groups, 0, 1)
    before = working_weights(engine)
    states = saved(engine)
    if groups.rank == 0:
        spoilt = engine.module.embedding.register_forward_hook(lambda module, x, y: _spoil(y))
    result = engine.train_step(batches(run, 1, groups.data_rank), 1e-2)
    assert result.skipped
    assert engine.state.scalars()["skipped_steps"] == 1
    assert all(torch.equal(now, old) for now, old in zip(working_weights(engine), before, strict=True))
    for state in engine.state.by_parameter():
        assert all(torch.equal(t, states[state.name][kind]) for kind, t in state.tensors.items())
    if groups.rank == 0:
        spoilt.remove()
    good = engine.train_step(batches(run, 1, groups.data_rank), 1e-2)
    assert not good.skipped
    assert 0 < good.grad_norm < 10


def _spoil(y: Any) -> Any:
    """Return ``y`` with a gradient that is not finite; the loss stays as it is."""
    y.register_hook(lambda grad: grad * float("nan"))
    return y


@pytest.mark.dist
@parametrize_pairs(
    lambda kind, engine, **_: has(engine, kind), kind=[*KINDS], dtype=["fp32", "bf16", "fp16"], engine=ENGINES
)
def test_a_gradient_that_is_not_finite_changes_no_weight(kind, dtype, engine):
    changes = {**KINDS[kind], "train.dtype": dtype, "optim.initial_loss_scale_power": "4"}
    run_ranks(2, _bad_gradients_change_nothing, GRIDS["dp2"], on(engine, changes))


def _evaluates_between_steps(changes: dict[str, str]) -> None:
    grid = GRIDS["dp2"]
    run, groups = settings(grid, **changes), groups_of(**grid)
    losses, _, _ = plain_loop(settings({}))
    engine = make_engine(run, groups)
    for step in range(STEPS):
        parts = batches(run, step, groups.data_rank)
        assert float(eval_loss(engine, parts)) == pytest.approx(losses[step], rel=1e-5)
        assert float(engine.train_step(parts, rate(step)).loss) == pytest.approx(losses[step], rel=1e-5)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "engine"), [(kind, engine) for engine in ENGINES for kind in SHARING if has(engine, kind)]
)
def test_validation_between_steps(kind, engine):
    run_ranks(2, _evaluates_between_steps, on(engine, KINDS[kind]))
