"""A run that resumes from a checkpoint is, bit for bit, the run that was never interrupted; at every step.

One run of nine steps saves after each. Dropout is on, the batch grows on the way, and in
half precision the loss scale rises until it overflows. Then every checkpoint is loaded into an
engine whose every number was made wrong before, and once into a new engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from megads.checkpoint.resume.progress import Progress
from tests.engine.plain import make_engine, working_weights
from tests.parity.checkpoints import load, save
from tests.parity.layouts import SAMPLES, VOCAB, Layout, cut_out_samples, hidden_samples
from tests.ranks import groups_of, run_ranks

STEPS = 9
END = 7  # the token that ends a document
AFTER = 2  # steps after each checkpoint; what they begin with is compared whole, so more would follow
NEW_ENGINE_AT = 3
RAMP = {"train.rampup_batch_size": "2,2,20", "train.global_batch": "8"}
DROPOUT = {"model.hidden_dropout": "0.1", "model.attention_dropout": "0.1"}
SMALL = {"model.num_layers": "2", "optim.lr": "0.01", "optim.lr_decay_iters": "12", "optim.lr_warmup_frac": "0.1"}
ALL = {"deepspeed.param_persistence_threshold": "0"}
ONE = {"train.micro_batch": "1"}
LOWER = {"optim.initial_loss_scale_power": "16"}  # so that the scale rises twice before it overflows
LAYOUTS = {
    "tp2": Layout("gpt", tp=2, zero=1),
    "pp2": Layout("gpt", pp=2, zero=1, more=ONE),
    "sp2": Layout("gpt", sp=2, zero=0),
    "dp2-zero1": Layout("llama", dp=2, zero=1, more={**ONE, **LOWER}),
    "dp2-zero2": Layout("gpt", dp=2, zero=2, more=ONE),
    "dp2-zero3": Layout("llama", dp=2, zero=3, more={**ONE, **ALL, **LOWER}),
    "tp2-dp2": Layout("llama", tp=2, dp=2, zero=0, more=ONE),
    "bert-pp2-tp2": Layout("bert", pp=2, tp=2, zero=1, more={**ONE, "parallel.scatter_norms": "true"}),
    "t5-pp2-tp2": Layout("t5-v1.1", pp=2, tp=2, zero=1, more={**ONE, "parallel.scatter_norms": "true"}),
    "t5-sp2-zero3": Layout("t5", sp=2, zero=3, more={**ONE, **ALL}),
    "retro-sp2-zero3": Layout("retro-dropout", sp=2, zero=3, more=ONE).on("native"),
    "pp2-zb": Layout("gpt", pp=2, zero=1, more={**ONE, "parallel.pipeline_schedule": "zb-h1"}),
    "pp2-chunks": Layout(
        "gpt", pp=2, zero=1, more={**ONE, "parallel.virtual_stages": "2", "parallel.pipeline_split": "0,1,1,0"}
    ),
    # How often attention draws depends on the documents of a rank's own samples.
    "dp2-documents": Layout("gpt", dp=2, zero=1, more={**ONE, "data.reset_attention_mask": "true"}),
}
TYPES = {
    "fp32": {},
    "bf16": {"train.dtype": "bf16"},
    "fp16": {"train.dtype": "fp16", "optim.loss_scale_window": "2"},
}
QUICK = [
    ("tp2-dp2", "fp32"),
    ("dp2-zero3", "bf16"),
    ("pp2", "fp16"),
    ("dp2-documents", "fp32"),
    ("bert-pp2-tp2", "bf16"),
    ("t5-pp2-tp2", "fp32"),
    ("retro-sp2-zero3", "fp32"),
]
NATIVE = [
    ("tp2", "fp16"),
    ("pp2", "fp16"),
    ("sp2", "bf16"),
    ("dp2-zero1", "fp32"),
    ("dp2-zero2", "fp16"),
    ("dp2-zero3", "bf16"),
    ("t5-sp2-zero3", "fp32"),
    ("retro-sp2-zero3", "bf16"),
    ("pp2-zb", "fp32"),
    ("pp2-chunks", "fp16"),
]
ON_NATIVE_ALONE = ("pp2-zb", "pp2-chunks", "retro-sp2-zero3")
PAIRS = [(layout, dtype) for layout in LAYOUTS if layout not in ON_NATIVE_ALONE for dtype in TYPES]


class _Samples:
    """A dataset that needs no file."""

    def __init__(self, kind: str):
        self.kind = kind

    def __len__(self) -> int:
        return 1000  # more than the run takes

    def __getitem__(self, i: int) -> Any:
        import numpy as np
        import torch

        if self.kind.startswith("bert"):
            return hidden_samples(16, torch.Generator().manual_seed(i))[i % SAMPLES].numpy()
        if self.kind == "t5":
            return cut_out_samples(16, 8, torch.Generator().manual_seed(i))[i % SAMPLES].numpy()
        # Of retro 4 chunks with 2 neighbours of 8 tokens each.
        return np.random.default_rng(i).integers(0, VOCAB, 81 if self.kind == "retro" else 17)


class _Run:
    """An engine with what a run has around it: a place in the data and in the schedule."""

    def __init__(self, layout: Layout, changes: dict[str, str]):
        from megads.config.schedule.batches import BatchSchedule
        from megads.config.schedule.rates import Schedule

        scale = {"optim.initial_loss_scale_power": "17", **layout.more} if "fp16" in changes.values() else {}
        layers = {"model.num_layers": "6"} if layout.kind.startswith("retro") else {}
        self.run = layout.run(**{**SMALL, **DROPOUT, **RAMP, **scale, **changes, **layers})
        self.groups = groups_of(**layout.degrees)
        self.engine = make_engine(self.run, self.groups, eod=END if self.run.data.reset_attention_mask else None)
        self.schedule, self.sizes = Schedule.of(self.run), BatchSchedule.of(self.run)
        self.progress = Progress()

    def step(self) -> tuple[Any, ...]:
        """Do the next step; return all that it says, and what it leaves."""
        from megads.data.loading.batches import Batches
        from megads.train.loop import advance

        groups, done, rows = self.groups, self.progress, self.run.train.micro_batch
        read = Batches(
            _Samples(self.run.model.family),
            micro_batch=rows,
            data_rank=groups.data_rank,
            data_size=groups.data_size,
        )
        batch, lr = self.sizes.batch_at(done.consumed_samples), self.schedule.lr(done.scheduled_samples)
        ends = done.consumed_samples + batch
        parts = [read.read(first) for first in range(done.consumed_samples, ends, read.block)]
        result = self.engine.train_step(parts, lr, first_sample=done.consumed_samples)
        self.progress = advance(done, result, float(result.loss), batch)
        said = (float(result.loss), result.grad_norm, result.skipped, result.loss_scale)
        return (*said, batch, lr, self.state())

    def state(self) -> str:
        """Return a digest of every number on this rank that decides what comes. Collective."""
        import torch

        tensors = [tensor for piece in self.engine.state.owned_shards() for tensor in piece.tensors.values()]
        tensors += working_weights(self.engine)
        digest = hashlib.blake2b(repr((self.progress, self.engine.state.scalars())).encode())
        for tensor in tensors:
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def spoil(self) -> None:
        """Make every number wrong, and have the generators of the ranks stand apart."""
        import torch

        torch.manual_seed(99 + self.groups.rank)
        for piece in self.engine.state.owned_shards():
            for tensor in piece.tensors.values():
                tensor.normal_()
        self.engine.state.sync_from_masters()
        self.engine.state.load_scalars({key: value + 3 for key, value in self.engine.state.scalars().items()})
        self.progress = Progress(77, 77, 77)

    def save(self, folder: Path) -> Path:
        return save(self.engine, self.run, self.groups, folder, self.progress)

    def load(self, path: Path) -> None:
        self.progress = load(self.engine, self.groups, path)


def _resumes_at_every_step(layout: Layout, changes: dict[str, str], folder: Path, stride: int = 1) -> None:
    run, whole, paths = _Run(layout, changes), [], {}
    for step in range(1, STEPS + 1):
        whole.append(run.step())
        if step % stride == 0:
            paths[step] = run.save(folder)
    _covers_what_it_should(whole, overflows="fp16" in changes.values())
    for step, path in paths.items():
        run.spoil()
        assert run.state() != whole[step - 1][-1]
        run.load(path)
        assert run.state() == whole[step - 1][-1], f"after step {step}"
        for later in range(step, min(step + AFTER, STEPS)):
            assert run.step() == whole[later], f"step {later + 1} after step {step}"
    again = _Run(layout, changes)
    again.load(paths[NEW_ENGINE_AT])
    assert [again.step() for _ in range(NEW_ENGINE_AT, STEPS)] == whole[NEW_ENGINE_AT:]


def _covers_what_it_should(whole: list[tuple[Any, ...]], *, overflows: bool) -> None:
    """Check that the batch grows, the rate moves, and that the loss scale rises, overflows and continues."""
    losses, _, skipped, scales, batches, rates, _ = zip(*whole, strict=True)
    assert len(set(batches)) == 4
    assert len(set(rates)) > STEPS // 2
    assert len(set(losses)) == STEPS
    assert any(skipped) == overflows
    if overflows:
        assert False in skipped[skipped.index(True) :]
        assert len(set(scales)) > 2


@pytest.mark.dist
@pytest.mark.parametrize(("layout", "dtype"), QUICK)
def test_a_checkpoint_of_every_step_goes_on_bitwise(layout, dtype, tmp_path):
    found = LAYOUTS[layout]
    run_ranks(found.ranks, _resumes_at_every_step, found, TYPES[dtype], tmp_path, timeout_s=180)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "dtype", "engine"),
    [
        *((*pair, "deepspeed") for pair in PAIRS if pair not in QUICK),
        *((*pair, "native") for pair in NATIVE),
    ],
)
def test_checkpoints_of_every_layout_and_precision_go_on_bitwise(layout, dtype, engine, tmp_path):
    """Of every third step: that which step it is matters nowhere, the three above show."""
    found = LAYOUTS[layout].on(engine)
    run_ranks(found.ranks, _resumes_at_every_step, found, TYPES[dtype], tmp_path, 3, timeout_s=180)
