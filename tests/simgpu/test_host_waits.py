"""In a step the host waits for the device once, and a micro-batch is uploaded once, without a wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import ENGINES, batches, in_halves, on, plain_loop, rate, settings
from tests.ranks import groups_of
from tests.simgpu.counting import Counts, counting
from tests.simgpu.device import DEVICE, run_on_device

KINDS: dict[str, dict[str, str]] = {
    "bf16-zero1": {"train.dtype": "bf16", "parallel.zero_stage": "1"},
    "bf16-zero2": {"train.dtype": "bf16", "parallel.zero_stage": "2"},
    "fp16-zero1": {"train.dtype": "fp16", "parallel.zero_stage": "1", "optim.initial_loss_scale_power": "8"},
    "fp32-zero1": {"parallel.zero_stage": "1"},
    "bf16-zero1-unclipped": {"train.dtype": "bf16", "parallel.zero_stage": "1", "optim.clip_grad": "0"},
    "gpt": {"train.dtype": "bf16", "parallel.zero_stage": "1", "model.family": "gpt"},
    "adapters": {
        "train.dtype": "bf16",
        "parallel.zero_stage": "1",
        "model.lora_rank": "2",
        "model.lora_dropout": "0.1",
    },
}
PARALLEL: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "tp2": ({"tensor": 2}, {"train.dtype": "bf16"}),
    "tp2-scatter": ({"tensor": 2}, {"train.dtype": "bf16", "parallel.scatter_norms": "1"}),
    "sp2": ({"seq": 2}, {"train.dtype": "bf16"}),
}
SHARED: dict[str, dict[str, str]] = {
    **{f"bf16-zero{stage}": {"train.dtype": "bf16", "parallel.zero_stage": stage} for stage in "0123"},
    "fp16-zero3": {"train.dtype": "fp16", "parallel.zero_stage": "3", "optim.initial_loss_scale_power": "8"},
}
A_STEP = {
    "deepspeed": {"upload_pinned": 2, "download": 1},
    "native": {"upload_pinned": 2, "download_pinned": 1, "synchronize": 1},
}
"""What a step of two micro-batches asks for; the host waits in the last one, behind the update."""


def engine_of(grid: dict[str, int], changes: dict[str, str], eod: int | None = None) -> tuple[Any, Any, Any]:
    import torch

    from megads.engine.build import make_engine

    run, groups = settings(grid, **in_halves(grid, changes)), groups_of(**grid)
    return make_engine(run, groups, torch.device(DEVICE), eod), run, groups


def third_step(engine: Any, run: Any, groups: Any, **more: Any) -> Counts:
    """Return what the third step asks of the device; the ones before make what stays."""
    for step in range(3):
        parts = [engine.prepare(part) for part in batches(run, step, groups.data_rank)]
        with counting() as found:
            result = engine.train_step(parts, rate(step), **more)
            float(result.loss)
            [float(term) for term in result.losses.values()]
    assert not result.skipped
    return found


def _waits_once(grid: dict[str, int], changes: dict[str, str], engine_kind: str) -> None:
    engine, run, groups = engine_of(grid, on(engine_kind, changes))
    found = third_step(engine, run, groups)
    assert found.kinds() == A_STEP[engine_kind], "\n".join(map(str, found.events))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_once(kind, engine):
    run_on_device(1, _waits_once, {}, KINDS[kind], engine)


@pytest.mark.dist
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", PARALLEL)
def test_a_step_of_a_cut_model_waits_once(layout, engine):
    run_on_device(2, _waits_once, *PARALLEL[layout], engine)


@pytest.mark.dist
@pytest.mark.parametrize("kind", SHARED)
def test_a_step_of_the_native_engine_waits_once_with_every_zero_stage(kind):
    run_on_device(2, _waits_once, {"data": 2}, SHARED[kind], "native")


def _documents_wait_for_nothing(engine_kind: str) -> None:
    changes = {"train.dtype": "bf16", "data.reset_position_ids": "1", "data.reset_attention_mask": "1"}
    engine, run, groups = engine_of({}, on(engine_kind, changes), eod=3)
    assert any((part == 3).any() for part in batches(run, 2, 0))
    found = third_step(engine, run, groups)
    assert found.kinds() == A_STEP[engine_kind], "\n".join(map(str, found.events))


@pytest.mark.parametrize("engine", ENGINES)
def test_documents_wait_for_nothing(engine):
    run_on_device(1, _documents_wait_for_nothing, engine)


def _a_judged_loss_waits_once_more(engine_kind: str) -> None:
    engine, run, groups = engine_of({}, on(engine_kind, KINDS["bf16-zero1"]))
    found = third_step(engine, run, groups, accepts=lambda loss: loss > 0)
    more = {"deepspeed": {"item": 1}, "native": {"synchronize": 2}}[engine_kind]
    assert found.kinds() == {**A_STEP[engine_kind], **more}, "\n".join(map(str, found.events))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_judged_loss_waits_once_more(engine):
    run_on_device(1, _a_judged_loss_waits_once_more, engine)


def _is_skipped_where_a_gradient_is_not_finite(kind: str, engine_kind: str) -> None:
    import torch

    engine, run, _ = engine_of({}, on(engine_kind, KINDS[kind]))
    before = [weight.clone() for weight in engine.module.parameters()]
    weight = engine.module.final_norm.weight
    handle = weight.register_hook(lambda grad: grad * torch.inf)
    with counting() as found:
        result = engine.train_step(batches(run, 0, 0), rate(0))
    handle.remove()
    assert result.skipped
    assert result.grad_norm == float("inf")
    assert found.downloads == 1  # uploads: the tables of rotations, once
    assert all(torch.equal(old, new) for old, new in zip(before, engine.module.parameters(), strict=True))
    assert not engine.train_step(batches(run, 0, 0), rate(0)).skipped


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["bf16-zero1", "bf16-zero2", "fp16-zero1", "fp32-zero1"])
def test_a_step_is_skipped_where_a_gradient_is_not_finite(kind, engine):
    run_on_device(1, _is_skipped_where_a_gradient_is_not_finite, kind, engine)


def _an_extra_item_is_found() -> None:
    engine, run, groups = engine_of({}, KINDS["bf16-zero1"])
    mean = engine.mean_over_data
    engine.mean_over_data = lambda loss: mean(loss) / (1 + 0 * loss.item())
    found = third_step(engine, run, groups)
    assert [event.kind for event in found.waits] == ["item", "download"]
    assert "test_host_waits.py" in found.waits[0].where


def test_an_extra_item_is_found():
    run_on_device(1, _an_extra_item_is_found)


def _losses_are_those_of_the_cpu(engine_kind: str) -> None:
    run = settings({}, **in_halves({}, KINDS["fp32-zero1"]))
    losses, norms, _ = plain_loop(run)
    engine, run, _ = engine_of({}, on(engine_kind, KINDS["fp32-zero1"]))
    results = [engine.train_step(batches(run, step, 0), rate(step)) for step in range(3)]
    assert [float(r.loss) for r in results] == pytest.approx(losses[:3], rel=1e-6)
    assert [r.grad_norm for r in results] == pytest.approx(norms[:3], rel=1e-5)
    scores = engine.eval_losses(batches(run, 0, 0))
    assert scores.shape == (8, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_the_host_give_the_cpus_losses(engine):
    run_on_device(1, _losses_are_those_of_the_cpu, engine)


def _stages_wait(grid: dict[str, int], changes: dict[str, str]) -> None:
    engine, run, groups = engine_of(grid, changes)
    found = third_step(engine, run, groups)
    waits = [event.kind for event in found.waits]
    # DeepSpeed uploads two zeros where the last stage's loss is to go.
    expected = ["download"] if groups.pipe_rank == groups.pipe_size - 1 else ["upload", "download"]
    assert waits == expected, "\n".join(map(str, found.events))


@pytest.mark.dist
def test_the_last_stage_of_a_pipeline_waits_once_and_others_twice():
    run_on_device(2, _stages_wait, {"pipe": 2}, {"train.dtype": "bf16", "parallel.zero_stage": "1"})


def _samples_with_neighbours_or_of_chats_wait_once(kind: str) -> None:
    from tests.parity.layouts import Layout
    from tests.parity.layouts import batches as samples
    from tests.parity.test_chat_layouts import CHAT, SIZES, mine_of
    from tests.simgpu.parity import engine_on

    more = {"retro": {"model.num_layers": "6", "train.global_batch": "8"}, "llama": {**SIZES, **CHAT}}[kind]
    engine, run, groups = engine_on(DEVICE, Layout(kind, more={"train.dtype": "bf16"}).on("native"), **more)
    for step in (0, 1, 0):
        rows = mine_of(run, groups, step) if kind == "llama" else samples(run, step, 0)
        parts = [engine.prepare(part) for part in rows]
        with counting() as found:
            float(engine.train_step(parts, rate(step)).loss)
    assert found.kinds() == {**A_STEP["native"], "upload_pinned": len(parts)}, "\n".join(map(str, found.events))


@pytest.mark.parametrize("kind", ["retro", "llama"])
def test_samples_with_neighbours_and_packed_chats_wait_once(kind):
    run_on_device(1, _samples_with_neighbours_or_of_chats_wait_once, kind)
