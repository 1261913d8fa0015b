"""The loop on the simulated device: batches from the loader, saves in the background, resuming, validation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, state_of
from tests.ranks import run_ranks
from tests.simgpu.device import DEVICE, run_on_device

CHANGES = {
    **{"train.train_iters": "4", "optim.lr_decay_iters": "4", "checkpoint.save_interval": "2"},
    **{"train.eval_interval": "2", "train.eval_iters": "1"},
}
BACKGROUND = {"checkpoint.in_background": "true"}
LAYOUTS = {
    "dp2-zero1": Layout("gpt", dp=2, zero=1, more={"train.dtype": "bf16"}),
    "pp2": Layout("gpt", pp=2, zero=1),
    "tp2-zero3": Layout("llama", tp=2, zero=3, more={"deepspeed.param_persistence_threshold": "0"}),
}


def _runs(device: str, layout: Layout, folder: Path, last: int, changes: dict[str, str]) -> None:
    import torch.distributed as dist

    loop = loop_of(layout, folder, device=device, **{**CHANGES, **changes, "train.exit_interval": str(last)})
    loop.run()
    assert loop.training.progress.iteration == last
    losses = [loss for loss, *_ in loop.training.engine.seen]
    said = f"{state_of(loop)} {loop.training.progress.last_valid_loss} {losses[-2:]}"
    (folder / f"rank-{dist.get_rank()}.txt").write_text(said)


def _files(folder: Path, iteration: int) -> dict[str, bytes]:
    """Return the tensors' files of a checkpoint."""
    found = (folder / "checkpoints" / f"iter_{iteration:07d}").rglob("*.safetensors")
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_saves_and_resumes_as_on_the_cpu(layout, tmp_path):
    layout = LAYOUTS[layout]
    here, there, mixed = (tmp_path / name / "run" for name in ("device", "cpu", "mixed"))
    for folder in (here, there, mixed):
        folder.mkdir(parents=True)
    run_ranks(layout.ranks, _runs, "cpu", layout, there, 4, {}, timeout_s=180)
    run_on_device(layout.ranks, _runs, DEVICE, layout, here, 2, BACKGROUND, timeout_s=180)
    shutil.copytree(there / "checkpoints" / "iter_0000002", mixed / "checkpoints" / "iter_0000002")
    for folder in (here, mixed):
        run_on_device(layout.ranks, _runs, DEVICE, layout, folder, 4, BACKGROUND, timeout_s=180)
        for iteration in (2, 4):
            assert _files(folder, iteration) == _files(there, iteration) != {}
        for rank in range(layout.ranks):
            assert (folder / f"rank-{rank}.txt").read_text() == (there / f"rank-{rank}.txt").read_text()
