"""On the simulated device every layout computes the CPU's numbers: losses, norms, weights and moments, bit by bit.

The same kernels run on both, so what differs is what the program does otherwise on a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_marks import as_new
from tests.parity.layouts import Layout
from tests.ranks import run_ranks
from tests.simgpu.device import DEVICE, run_on_device
from tests.simgpu.parity import engine_on, record, recorded

SCATTER = {"parallel.scatter_norms": "true"}
FULL = {"recompute.granularity": "full"}
SELECTIVE = {"recompute.granularity": "selective"}
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}
DOCUMENTS = {
    "data.reset_attention_mask": "true",
    "data.reset_position_ids": "true",
    "data.eod_mask_loss": "true",
}
BF16, FP16 = {"train.dtype": "bf16"}, {"train.dtype": "fp16"}
LAYOUTS = [
    *(Layout(zero=zero) for zero in range(4)),
    Layout("gpt-dropout", more=FULL),
    Layout("gpt-dropout", zero=0, more=SELECTIVE),
    Layout("llama", more=DOCUMENTS),
    Layout("bert-dropout", zero=2),
    Layout("t5-dropout", zero=1, more=FULL),
    Layout("gpt", zero=1, more=BF16),
    Layout("llama", zero=0, more=BF16),
    Layout("llama", zero=3, more={**BF16, **PARTITIONED}),
    Layout("gpt", zero=1, more=FP16),
    Layout("gpt", zero=2, more={**FP16, "deepspeed.offload_optimizer": "cpu"}),
    Layout(tp=2, zero=0),
    Layout("gpt-dropout", tp=2, more=SCATTER),
    Layout("gqa", sp=2, more=DOCUMENTS),
    Layout(pp=2, zero=1, more=FULL),
    Layout(dp=2, zero=2, more=BF16),
    Layout("gqa", dp=2, zero=3, more=PARTITIONED),
    Layout("bert", tp=2, zero=1, more=SCATTER),
    Layout("t5", pp=2, zero=1),
]
LORA = {"model.lora_rank": "3", "model.lora_alpha": "12"}
RETRO = {"model.num_layers": "6", "train.global_batch": "8"}
NATIVE = [
    *(each for each in LAYOUTS if each.pp == 1),
    Layout("retro", zero=1, more=RETRO),
    Layout("retro", tp=2, zero=3, more={**RETRO, **SCATTER, **FULL}),
    Layout("gqa", zero=2, more={**LORA, **BF16}),
    Layout("gpt-dropout", tp=2, zero=3, more={**LORA, **SCATTER, "model.lora_dropout": "0.2"}),
]


@pytest.mark.dist
@pytest.mark.parametrize("layout", [*LAYOUTS, *(each.on("native") for each in NATIVE)], ids=str)
def test_a_layout_computes_what_the_cpu_does(layout, tmp_path):
    run_on_device(layout.ranks, record, DEVICE, layout, tmp_path, {})
    run_ranks(layout.ranks, record, "cpu", layout, tmp_path, {}, timeout_s=120)
    for rank in range(layout.ranks):
        names = compare(tmp_path, rank)
        assert any(".retriever." in name for name in names) == (layout.kind == "retro")
        assert any(".lora_" in name for name in names) == ("model.lora_rank" in layout.more)


def _record_chats(device: str, folder: Path) -> None:
    import torch

    from tests.parity.test_chat_layouts import CHAT, SIZES, mine_of, rate

    engine, run, groups = engine_on(device, Layout("llama").on("native"), **SIZES, **CHAT)
    steps = [[engine.prepare(part) for part in mine_of(run, groups, step)] for step in range(2)]
    results = [engine.train_step(parts, rate(step)) for step, parts in enumerate(steps)]
    weights = {state.name: state.tensors["weight"].cpu() for state in engine.state.by_parameter()}
    held_out = engine.eval_losses(mine_of(run, groups, 0)).cpu()
    torch.save(([(float(r.loss), r.grad_norm) for r in results], held_out, weights), folder / f"{device[:3]}-0.pt")


def test_packed_chats_are_those_of_the_cpu(tmp_path):
    run_on_device(1, _record_chats, DEVICE, tmp_path)
    run_ranks(1, _record_chats, "cpu", tmp_path)
    compare(tmp_path, 0)


def _record_where_a_move_makes_new_ones(layout: Layout, folder: Path) -> None:
    import megads.engine.deepspeed.build as build

    built = build.build_model

    def and_as_new(*args: Any, **more: Any) -> Any:
        module = built(*args, **more)
        as_new(module)
        return module

    build.build_model = and_as_new
    try:
        record(DEVICE, layout, folder, {})
    finally:
        build.build_model = built


@pytest.mark.dist
def test_marks_survive_where_a_move_makes_new_parameters(tmp_path):
    layout = Layout(tp=2, zero=0)
    run_on_device(2, _record_where_a_move_makes_new_ones, layout, tmp_path)
    run_ranks(2, record, "cpu", layout, tmp_path, {}, timeout_s=120)
    for rank in range(2):
        compare(tmp_path, rank)


def compare(folder: Path, rank: int) -> list[str]:
    """Compare what a rank has recorded on both devices; return the names of weights and moments."""
    import torch

    (ours, evaluated, weights), (theirs, expected, others) = (recorded(d, folder, rank) for d in (DEVICE, "cpu"))
    assert ours == theirs
    torch.testing.assert_close(evaluated, expected, rtol=0, atol=0)
    _equal(weights, others)
    return list(weights)


def _equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    import torch

    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0, msg=lambda told, name=name: f"{name}: {told}")
