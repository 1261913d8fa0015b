"""A checkpoint has the bytes that a plan counts, for every layout and both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.resume.progress import Progress
from megads.plan.costs.saves import bytes_per_save
from tests.parity.checkpoints import save
from tests.parity.layouts import Layout, batches, engine_of, rate
from tests.ranks import run_ranks

LAYOUTS = [
    Layout("llama", dp=2, zero=1, engine="native"),
    Layout("gpt", pp=2, zero=1, engine="native"),  # the embedding is tied over both stages
    Layout("gqa", tp=2, zero=1, more={"train.dtype": "bf16"}),
    Layout("llama", dp=2, zero=3, engine="native", more={"optim.optimizer": "lion"}),
    Layout("t5", dp=2, zero=2),
]


def data_bytes(path: Path) -> int:
    """Return the bytes of a safetensors file after its header."""
    with path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")


def writes_what_is_planned(layout: Layout, folder: Path) -> None:
    engine, run, groups = engine_of(layout)
    engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    path = save(engine, run, groups, folder, Progress(1))
    files = list(path.glob("*.safetensors"))
    assert files
    assert sum(map(data_bytes, files)) == bytes_per_save(run)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_checkpoint_has_the_bytes_of_the_plan(layout: Layout, tmp_path: Path):
    run_ranks(layout.ranks, writes_what_is_planned, layout, tmp_path)
