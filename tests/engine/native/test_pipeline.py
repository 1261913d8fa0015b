"""Stages, virtual stages and zero bubble in the native engine: losses, norms and weights of a plain loop."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from megads.checkpoint.format.folders import checkpoints_in
from megads.checkpoint.resume.progress import Progress
from megads.engine.native.pipeline import NativePipelineEngine
from tests.engine.deepspeed import test_pipeline as checks
from tests.engine.plain import (
    NATIVE,
    batches,
    eval_loss,
    goes_on_bitwise,
    make_engine,
    plain_loop,
    settings,
    train,
    trains_like_one_rank,
)
from tests.parity.checkpoints import load, save, whole_tensors
from tests.parity.layouts import Layout, engine_of, one_rank_and_weights, train_on
from tests.ranks import groups_of, run_ranks

PP2, PP2_DP2 = {"pipe": 2}, {"pipe": 2, "data": 2}
GPT = {**checks.GPT, **NATIVE}
LLAMA = {**checks.LLAMA, **NATIVE}
CHUNKS = {"parallel.virtual_stages": "2"}
EIGHT = {**CHUNKS, "model.num_layers": "8"}
ZB = {"parallel.pipeline_schedule": "zb-h1"}
SCATTER = {"parallel.scatter_norms": "1"}


def run_grid(check, grid, *args):
    run_ranks(math.prod(grid.values()), check, grid, *args, timeout_s=180)


def zero(stage: int) -> dict[str, str]:
    return {"parallel.zero_stage": str(stage)}


CASES = {
    "pp2": ({"pipe": 2}, GPT),
    "pp2-chunks": ({"pipe": 2}, {**GPT, **CHUNKS}),
    "pp2-zb": ({"pipe": 2}, {**GPT, **ZB}),
    "pp4-virtual8-zero0": ({"pipe": 4}, {**GPT, **EIGHT, **zero(0)}),
    "pp4-virtual8-zero1": ({"pipe": 4}, {**LLAMA, **EIGHT}),
    "pp4-zb": ({"pipe": 4}, {**GPT, **ZB}),
    "pp2dp2-zero0": ({"pipe": 2, "data": 2}, {**GPT, **CHUNKS, **zero(0)}),
    "pp2dp2-zero1": ({"pipe": 2, "data": 2}, {**GPT, **CHUNKS}),
    "pp2dp2-zb": ({"pipe": 2, "data": 2}, {**GPT, **ZB}),
    "pp2dp2-zero2": ({"pipe": 2, "data": 2}, {**GPT, **CHUNKS, **zero(2)}),
    "pp2dp2-zero3": ({"pipe": 2, "data": 2}, {**GPT, **CHUNKS, **zero(3)}),
    "pp2dp2-zb-zero2": ({"pipe": 2, "data": 2}, {**GPT, **ZB, **zero(2)}),
    "pp2dp2-zb-zero3": ({"pipe": 2, "data": 2}, {**GPT, **ZB, **zero(3)}),
    "pp2tp2-scatter-chunks": ({"pipe": 2, "tensor": 2}, {**GPT, **CHUNKS, **SCATTER}),
    "pp2tp2-scatter-zb": ({"pipe": 2, "tensor": 2}, {**LLAMA, **ZB, **SCATTER}),
    "pp2sp2": ({"pipe": 2, "seq": 2}, {**LLAMA, **CHUNKS}),
    "pp2-uneven": (PP2, {**GPT, **CHUNKS, "parallel.pipeline_split": "0,3,1,0"}),
    "pp4-uneven-zb": ({"pipe": 4}, {**GPT, **ZB, "parallel.pipeline_split": "0,3,1,0"}),
    "pp4-one-micro-batch": ({"pipe": 4}, {**GPT, **EIGHT, "train.micro_batch": "8", "train.grad_acc_steps": "1"}),
    "pp4-eight-zb": ({"pipe": 4}, {**GPT, **ZB, "train.micro_batch": "1", "train.grad_acc_steps": "8"}),
    "pp2dp2-offload": (PP2_DP2, {**GPT, **CHUNKS, "deepspeed.offload_optimizer": "cpu"}),
    "pp2-tiles": ({"pipe": 2}, {**GPT, **ZB, "recompute.mlp_tiles": "2", "recompute.loss_chunk": "8"}),
    "pp2-overlap": (
        {"pipe": 2, "tensor": 2},
        {**GPT, **ZB, **SCATTER, "parallel.tp_overlap": "2", "recompute.granularity": "full"},
    ),
}


def has_its_chunks(grid, changes):
    run, groups = settings(grid, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    assert type(engine) is NativePipelineEngine
    assert len(engine.chunks) == int(changes.get("parallel.virtual_stages", "1"))
    assert engine.pipeline.schedule == changes.get("parallel.pipeline_schedule", "interleaved")
    names = [name for chunk in engine.chunks for name, _ in chunk.named_parameters()]
    assert len(set(names)) == len(names)
    owned = {state.name for state in engine.state.by_parameter()}
    assert set(names) - owned == ({"embedding.weight"} if groups.pipe_rank else set())  # the copy


@pytest.mark.dist
def test_a_rank_has_its_chunks():
    run_grid(has_its_chunks, PP2, {**GPT, **CHUNKS})
    run_grid(has_its_chunks, PP2, {**GPT, **ZB})


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_schedules_train_like_one_rank(name):
    run_grid(trains_like_one_rank, *CASES[name])


SCHEDULES = {"1f1b": {}, "chunks": CHUNKS, "zb": ZB}


@pytest.mark.dist
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_is_near_fp32(dtype, schedule):
    changes = {"train.dtype": dtype, "optim.initial_loss_scale_power": "8"}
    run_grid(checks.half_is_near, PP2_DP2, "gpt", {**NATIVE, **changes, **SCHEDULES[schedule]})


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "bad_rank"), [("1f1b", 0), ("chunks", 1), ("chunks", 0)])
def test_a_gradient_that_is_not_finite_on_one_stage_changes_no_weight_on_any(schedule, bad_rank):
    run_grid(checks.bad_gradients_change_nothing, PP2, {**NATIVE, **SCHEDULES[schedule]}, bad_rank)


@pytest.mark.dist
def test_a_step_that_overflows_is_skipped_on_every_stage():
    run_grid(checks.overflow_is_skipped, PP2, {**NATIVE, **CHUNKS})


@pytest.mark.dist
@pytest.mark.parametrize(("schedule", "stage"), [("1f1b", 3), ("chunks", 1), ("zb", 0)])
def test_evaluation_gives_what_one_rank_gives_and_leaves_training_alone(schedule, stage):
    run_grid(checks.evaluates_as_without, PP2_DP2, {**NATIVE, **SCHEDULES[schedule], **zero(stage)})


@pytest.mark.dist
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_loss_is_the_mean_over_counted_tokens(schedule):
    run_grid(checks.masked_tokens_do_not_count, PP2_DP2, {**NATIVE, **SCHEDULES[schedule]})


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        (PP2, {**CHUNKS, "train.dtype": "bf16"}),
        (PP2_DP2, {**CHUNKS, **zero(3)}),
        (PP2_DP2, {**ZB, "train.dtype": "fp16", "optim.initial_loss_scale_power": "8"}),
        ({"pipe": 2, "tensor": 2}, {**CHUNKS, **SCATTER, **zero(0)}),
    ],
    ids=["chunks-bf16", "chunks-zero3", "zb-fp16", "scatter"],
)
def test_an_engine_goes_on_bitwise(grid, changes):
    run_grid(goes_on_bitwise, grid, {**GPT, **changes})


def optimizes_as_deepspeed(grid, optimizer, changes) -> None:
    """Compare losses, norms and a validation, whose weights may be averages."""
    found = []
    for kind in (changes, {"engine.kind": "deepspeed"}):
        run, groups = settings(grid, **{**GPT, **optimizer, **kind}), groups_of(**grid)
        engine = make_engine(run, groups)
        numbers = [number for each in train(engine, run, groups) for number in (float(each.loss), each.grad_norm)]
        found.append([*numbers, float(eval_loss(engine, batches(run, 9, groups.data_rank)))])
    assert found[0] == pytest.approx(found[1], rel=2e-5)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "grid", "changes"),
    [("sophiag", PP2, CHUNKS), ("adamwschedulefree", PP2_DP2, {**ZB, **zero(3)}), ("lion", PP2, ZB)],
)
def test_other_optimizers_step_as_with_deepspeed(name, grid, changes):
    optimizer = {"optim.optimizer": name, **({"optim.sophia_interval": "2"} if name == "sophiag" else {})}
    run_grid(optimizes_as_deepspeed, grid, optimizer, changes)


OF_MASKS = {
    "t5-chunks": Layout("t5-v1.0", pp=2, tp=2, more={**CHUNKS, **SCATTER}),
    "t5-zb": Layout("t5", pp=2, dp=2, more=ZB),
    "bert-chunks": Layout("bert", pp=2, dp=2, more={**CHUNKS, "model.num_layers": "4"}),
    "bert-zb": Layout("bert", pp=2, tp=2, more={**ZB, **SCATTER}),
}


@pytest.mark.dist
@pytest.mark.parametrize("name", OF_MASKS)
def test_encoders_and_decoders_train_like_one_rank(name):
    layout = OF_MASKS[name].on("native")
    run_ranks(layout.ranks, layout_trains_like_one_rank, layout)


def layout_trains_like_one_rank(layout: Layout) -> None:
    losses, norms, weights = one_rank_and_weights(layout.kind)
    engine, run, groups = engine_of(layout)
    assert type(engine) is NativePipelineEngine
    results = train_on(engine, run, groups, range(3))
    assert [float(each.loss) for each in results] == pytest.approx(losses, rel=1e-5)
    assert [each.grad_norm for each in results] == pytest.approx(norms, rel=1e-4)
    for name, tensors in whole_tensors(engine, groups).items():
        torch.testing.assert_close(tensors["weight"], weights[name].detach(), rtol=1e-4, atol=2e-5)
    assert engine.loss_names == (("lm_loss", "sop_loss") if layout.kind == "bert" else ("lm_loss",))
    assert set(results[0].losses) == (set(engine.loss_names) if layout.kind == "bert" else set())


WAYS = {
    "one rank": ({}, {}),
    "chunks": (PP2, CHUNKS),
    "zb": (PP2, ZB),
    "virtual8": ({"pipe": 4}, {**CHUNKS, "deepspeed.communication_data_type": "fp32"}),
    "deepspeed": (PP2, {"engine.kind": "deepspeed"}),
}
EIGHT_LAYERS = {"model.num_layers": "8"}


def goes_on_from(folder: str, way: str, first: int, last: int) -> None:
    """Resume from the newest checkpoint in ``folder``, if there is one, train, and save."""
    grid, changes = WAYS[way]
    run = settings(grid, **{**GPT, **EIGHT_LAYERS, **changes})
    groups = groups_of(**grid)
    engine = make_engine(run, groups)
    if first:
        load(engine, groups, checkpoints_in(Path(folder))[-1])
    results = train(engine, run, groups, first, last)
    losses, norms, _ = plain_loop(settings({}, **{**checks.GPT, **EIGHT_LAYERS}))
    assert [float(each.loss) for each in results] == pytest.approx(losses[first:last], rel=1e-5)
    assert [each.grad_norm for each in results] == pytest.approx(norms[first:last], rel=1e-4)
    save(engine, run, groups, Path(folder), Progress(iteration=last))


@pytest.mark.dist
def test_a_checkpoint_resumes_under_any_schedule(tmp_path):
    order = ["chunks", "deepspeed", "virtual8", "zb"]
    for step, way in enumerate(order):
        grid, _ = WAYS[way]
        run_ranks(math.prod(grid.values()), goes_on_from, str(tmp_path), way, step, step + 1, timeout_s=180)
