"""Pipeline schedules of the native engine on the simulated device: the CPU's numbers, and one wait a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import NATIVE
from tests.parity.layouts import Layout
from tests.ranks import run_ranks
from tests.simgpu.device import DEVICE, run_on_device
from tests.simgpu.parity import record
from tests.simgpu.test_host_waits import engine_of, third_step
from tests.simgpu.test_parity import compare

CHUNKS = {"parallel.virtual_stages": "2"}
ZB = {"parallel.pipeline_schedule": "zb-h1"}
BF16, FULL = {"train.dtype": "bf16"}, {"recompute.granularity": "full"}
LAYOUTS = [
    Layout("gpt-dropout", pp=2, more={**CHUNKS, **BF16}),
    Layout("llama-tied", pp=2, more={**ZB, **FULL}),
]


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_schedule_computes_what_the_cpu_does(layout, tmp_path):
    layout = layout.on("native")
    run_on_device(2, record, DEVICE, layout, tmp_path, {})
    run_ranks(2, record, "cpu", layout, tmp_path, {}, timeout_s=120)
    for rank in range(2):
        compare(tmp_path, rank)


def _stages_wait_once(changes: dict[str, str]) -> None:
    engine, run, groups = engine_of({"pipe": 2}, {**NATIVE, **BF16, "model.num_layers": "4", **changes})
    found = third_step(engine, run, groups)
    expected = {"upload_pinned": run.train.grad_acc_steps, "download_pinned": 1, "synchronize": 1}
    assert found.kinds() == expected, "\n".join(map(str, found.events))


@pytest.mark.dist
@pytest.mark.parametrize("changes", [CHUNKS, ZB], ids=["chunks", "zero-bubble"])
def test_every_stage_waits_once(changes: dict[str, Any]):
    run_on_device(2, _stages_wait_once, changes)
