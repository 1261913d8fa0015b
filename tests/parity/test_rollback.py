"""A rollback lands, bit for bit, on the run that resumed from the checkpoint without the data behind it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, no_number, spike, state_of
from tests.ranks import run_ranks

HALF = {"train.dtype": "fp16", "optim.initial_loss_scale_power": "17", "optim.loss_scale_window": "3"}
LAYOUTS = {
    "dp2-zero1": Layout("llama", dp=2, zero=1, more={"train.dtype": "bf16"}),
    "tp2-zero0": Layout("gpt", tp=2, zero=0),
    "pp2": Layout("gpt", pp=2, zero=1, more=HALF),
    "sp2-zero2": Layout("llama", sp=2, zero=2),
    "dp2-zero3": Layout("llama", dp=2, zero=3, more={"deepspeed.param_persistence_threshold": "0"}),
    "dp2-schedule-free": Layout("llama", dp=2, zero=1, more={"optim.optimizer": "adamwschedulefree"}),
    "tp2-dp2": Layout("llama", tp=2, dp=2, zero=1, more=HALF),
    "dp2-documents": Layout("gpt", dp=2, zero=1, more={"data.reset_attention_mask": "true"}),
}
QUICK = ("dp2-zero1", "tp2-zero0", "pp2", "dp2-documents")
POLICY = {
    "stability.on_spike": "rollback",
    "stability.on_nan": "rollback",
    "stability.spike_window": "4",
    "stability.spike_after": "4",
    "stability.rollback_skip": "1",
}
RAMP = {"train.rampup_batch_size": "4,4,20"}


def _lands_where_skipping_would(layout: Layout, folder: Path) -> None:
    import torch.distributed as dist

    # Checkpoints at 4, 8, ...; step 7 is a spike: back to 4, and steps 5-8 are skipped. Then step 11 is
    # no number: back to 8, of which the checkpoint was saved after the first rollback, and 9-12 are skipped.
    more = {**POLICY, **RAMP, "train.train_iters": "16"}
    loop = loop_of(layout, folder / "back", {7: spike, 10: no_number}, **more)
    loop.run()
    done = loop.training.progress
    assert (done.iteration, done.rollbacks, done.rejected_iterations) == (16, 2, 0)

    for first, last, before in ((5, 8, 4), (9, 12, 8)):
        other = folder / f"other-{before}"
        if dist.get_rank() == 0:
            name = f"iter_{before:07d}"
            shutil.copytree(folder / "back" / "checkpoints" / name, other / "checkpoints" / name)
        dist.barrier()
        # The first ends before the next bad step, the second with the run.
        end = str(min(16, last + 2)) if before == 4 else "16"
        asked = {"train.exit_interval": end, "train.skip_iterations": f"{first}-{last}"}
        plain = loop_of(layout, other, **{**more, **asked})
        plain.run()
        steps = plain.training.engine.seen
        # Calls 1 to 7 came before the first rollback, 8 to 10 are steps 9 to 11, and what follows are 13 to 16.
        first_call = 7 if before == 4 else 10
        assert len(steps) == int(end) - last
        assert loop.training.engine.seen[first_call : first_call + len(steps)] == steps
    assert state_of(loop) == state_of(plain)
    assert replace(done, rollbacks=1) == plain.training.progress


@pytest.mark.dist
@pytest.mark.parametrize("layout", QUICK)
def test_a_rollback_lands_where_skipping_the_data_would(layout, tmp_path):
    found = LAYOUTS[layout]
    run_ranks(found.ranks, _lands_where_skipping_would, found, tmp_path, timeout_s=180)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "engine"),
    [*((name, "deepspeed") for name in LAYOUTS if name not in QUICK), ("dp2-zero1", "native"), ("dp2-zero3", "native")],
)
def test_every_rollback_lands_where_skipping_the_data_would(layout, engine, tmp_path):
    found = LAYOUTS[layout].on(engine)
    run_ranks(found.ranks, _lands_where_skipping_would, found, tmp_path, timeout_s=180)
