"""What a step of the loop asks of the device, as budgets: waits of the host, uploads a micro-batch.

A lower number belongs into the table. The goal: one wait a step without a pipeline, one upload a micro-batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity.layouts import Layout
from tests.parity.loops import loop_of
from tests.simgpu.counting import Counts, counting
from tests.simgpu.device import DEVICE, run_on_device

CHANGES = {
    **{"model.hidden_dropout": "0", "model.attention_dropout": "0", "train.train_iters": "3"},
    **{"checkpoint.save_interval": "0", "train.micro_batch": "2"},
}
BF16 = {"train.dtype": "bf16"}
BUDGETS = [
    # waits a step, uploads a step; 4 micro-batches a step. The loop adds one wait to the engine's (test_host_waits.py):
    # with times.split the time of a step ends with its update.
    (Layout(zero=0), 4, 6),
    (Layout(zero=1, more=BF16), 2, 4),
    (Layout(zero=2, more=BF16), 2, 4),
    (Layout(zero=3, more=BF16), 9, 6),
    (Layout(zero=1, more={"train.dtype": "fp16"}), 2, 4),
    (Layout(tp=2, zero=1, more=BF16), 2, 4),
    (Layout(pp=2, zero=1, more=BF16), 3, 5),
    (Layout(zero=1, more={**BF16, "data.reset_attention_mask": "true"}), 2, 4),
    (Layout(zero=1, more={**BF16, "times.split": "false"}), 1, 4),
    *((Layout(dp=2, zero=zero, more=BF16).on("native"), 2, 2) for zero in range(4)),
    (Layout(zero=0).on("native"), 2, 4),
    (Layout(zero=1, more={"train.dtype": "fp16"}).on("native"), 2, 4),
    (Layout(tp=2, zero=1, more=BF16).on("native"), 2, 4),
    (Layout(zero=1, more={**BF16, "data.reset_attention_mask": "true"}).on("native"), 2, 4),
    (Layout(zero=1, more={**BF16, "times.split": "false"}).on("native"), 1, 4),
]
MICRO_BATCHES = 4


def count_steps(layout: Layout, folder: Path, **changes: str) -> list[Counts]:
    """Return what each step of the loop asked of the device. Collective."""
    loop: Any = loop_of(layout, folder, device=DEVICE, **{**CHANGES, **changes})
    object.__setattr__(loop.training, "engine", loop.training.engine._real)  # the stand-in reads losses
    counts: list[Counts] = []
    step = loop.step

    def counted(batches: Any) -> None:
        with counting() as found:
            step(batches)
        counts.append(found)

    loop.step = counted
    loop.run()
    run = loop.training.run
    assert loop.training.micro_batches_of(run.train.global_batch) == MICRO_BATCHES // layout.dp
    return counts


def _stays_within(layout: Layout, folder: Path, waits: int, uploads: int) -> None:
    for found in count_steps(layout, folder)[2:]:  # the first ones find out more
        told = "\n".join(map(str, found.events))
        assert len(found.waits) <= waits, told
        assert found.uploads <= uploads, told


@pytest.mark.dist
@pytest.mark.parametrize(("layout", "waits", "uploads"), BUDGETS, ids=str)
def test_a_step_stays_within_its_budget(layout, waits, uploads, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    run_on_device(layout.ranks, _stays_within, layout, folder, waits, uploads)
