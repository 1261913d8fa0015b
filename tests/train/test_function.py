"""What a run saves of its function is what every other layout computes, and a model that was changed does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megads.checkpoint.function.record import KEY
from megads.errors import CheckpointError
from megads.families.table import FAMILIES
from tests.parity.layouts import SAMPLES, Layout
from tests.ranks import run_ranks

DOCUMENTS = 7
ONE = {"train.micro_batch": "1", "model.seq_length": "64"}
RESTARTS = {"data.reset_attention_mask": "true", "data.reset_position_ids": "true"}
KIND = {"data.tokenizer_type": "NullTokenizer"}


class _Samples:
    """As many rows as a step has, of the run's form."""

    def __init__(self, run: Any):
        from tests.parity.layouts import batches

        whole = run.model_copy(
            update={"parallel": run.parallel.model_copy(update={"data": 1}), "train": _whole_batch(run)}
        )
        self.rows = batches(whole, 3, 0)[0].numpy()
        self.width = self.rows.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def _whole_batch(run: Any) -> Any:
    return run.train.model_copy(update={"micro_batch": SAMPLES, "grad_acc_steps": 1})


def _training(layout: Layout, folder: Path, **changes: str) -> Any:
    """Return a run of ``layout`` with weights that it drew. Collective."""
    import torch

    from megads.device.vendor import vendor
    from megads.engine.build import make_engine
    from megads.train.setup import Training
    from tests.engine.plain import let_fp16_run
    from tests.ranks import groups_of

    let_fp16_run()
    run, groups, cpu = layout.run(**KIND, **changes), groups_of(**layout.degrees), torch.device("cpu")
    end = DOCUMENTS if run.data.reset_attention_mask else None
    engine = make_engine(run, groups, cpu, end)
    return Training(run, folder, groups, vendor({"MEGADS_DEVICE": "cpu"}), cpu, engine, {"train": _Samples(run)})


def _save(training: Any, iteration: int = 1) -> dict[str, Any]:
    """Save ``training`` and return what its checkpoint says of its function. Collective."""
    from megads.checkpoint.resume.progress import Progress
    from megads.checkpoint.save import Saver
    from megads.train.saving import snapshot_of

    training.progress = Progress(iteration)
    snapshot = snapshot_of(training)
    Saver(training.checkpoints, training.groups).save(snapshot)
    found: dict[str, Any] = snapshot.about[KEY]
    return found


def _resumes(first: Layout, then: list[Layout], folder: Path) -> None:
    from megads.train.resume import resume
    from tests.parity.layouts import train_on

    training = _training(first, folder)
    train_on(training.engine, training.run, training.groups, range(2))
    was = _save(training)
    assert len(was["losses"]) == len(was["batch"]["rows"]) > 1
    assert was["batch"]["kind"] == ("tokens" if FAMILIES[training.run.model.family].samples == "causal" else "samples")
    assert was["batch"]["end"] == (DOCUMENTS if training.run.data.reset_attention_mask else None)
    for layout in then:
        other = _training(layout, folder)
        resume(other)  # raises unless its losses are those
        now = _save(other)
        assert now["batch"] == was["batch"]
        largest = max(abs(a - b) for a, b in zip(now["losses"], was["losses"], strict=True))
        assert largest <= (0.03 if training.run.train.dtype != "fp32" else 1e-5) * was["losses"][0]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (
            Layout("gqa", tp=2, dp=2, more={**ONE, "parallel.scatter_norms": "true"}),
            [Layout("gqa", pp=2, sp=2, more=ONE).on("native"), Layout("gqa", dp=4, zero=3, more=ONE).on("native")],
        ),
        (
            Layout("gpt", dp=4, zero=2, more={**ONE, **RESTARTS, "train.dtype": "bf16"}),
            [Layout("gpt", tp=2, sp=2, more={**ONE, **RESTARTS, "train.dtype": "bf16"}).on("native")],
        ),
        (Layout("bert", tp=2, dp=2), [Layout("bert", pp=2, dp=2).on("native")]),
        (
            Layout("t5-v1.0", pp=2, dp=2).on("native"),
            [Layout("t5-v1.0", dp=4, more={"train.micro_batch": "1"})],
        ),
        (Layout("retro", dp=4, zero=1).on("native"), [Layout("retro", sp=2, tp=2).on("native")]),
    ],
    ids=["gqa", "gpt-documents-bf16", "bert", "t5", "retro"],
)
def test_other_layouts_compute_what_was_saved(first, then, tmp_path):
    run_ranks(4, _resumes, first, then, tmp_path, timeout_s=120)


def _is_refused_after(change: str, folder: Path, dtype: str) -> None:
    """Train until the model knows its samples, change the code, and resume."""
    from megads.models import rope
    from megads.models.attention import Attention
    from megads.train.resume import resume
    from tests.parity.layouts import train_on

    layout = Layout("llama", dp=2, more={**ONE, "train.dtype": dtype}).on("native")
    training = _training(layout, folder)
    train_on(training.engine, training.run, training.groups, range(12), lambda step: 3e-3)
    _save(training)
    real, attend = rope.frequencies, Attention._attend
    planted = pytest.MonkeyPatch()
    with planted.context():
        if change == "rotation":
            planted.setattr("megads.models.gpt.frequencies", lambda model: real(model).flip(0))
        elif change == "scale":
            planted.setattr(Attention, "_attend", lambda self, w, d, q, k, v: attend(self, w, d, q / 4, k, v))
        again = _training(layout, folder)
        try:
            if change:
                with pytest.raises(CheckpointError, match=r"computes another function: .* conventions did not change"):
                    resume(again)
                again = _training(layout, folder, **{"checkpoint.allow_changes": "replay"})
            resume(again)
        finally:
            planted.undo()


@pytest.mark.dist
@pytest.mark.parametrize(("change", "dtype"), [("rotation", "fp32"), ("scale", "fp32"), ("", "fp32"), ("", "bf16")])
def test_changed_code_is_refused_though_every_setting_is_as_it_was(change, dtype, tmp_path):
    run_ranks(2, _is_refused_after, change, tmp_path, dtype, timeout_s=120)


def _stores_none(folder: Path) -> None:
    from megads.train.resume import resume

    layout = Layout("gpt", more=ONE).on("native")
    training = _training(layout, folder, **{"checkpoint.replay_rows": "0"})
    assert "batch" not in _save(training)
    resume(_training(layout, folder))


def test_without_rows_only_conventions_are_stored(tmp_path):
    run_ranks(1, _stores_none, tmp_path)


def test_of_a_row_of_chats_the_tokens_are_stored_and_no_label():
    import numpy as np

    from megads.train.function import _read

    run = Layout("llama").run(**KIND)
    chats = run.model_copy(update={"finetune": run.finetune.model_copy(update={"task": "chat"})})
    length = run.model.seq_length
    row = np.concatenate([np.arange(length), np.full(length, -1), np.ones(length, int)])
    training = SimpleNamespace(run=chats, splits={"train": [row]}, engine=None)
    batch = _read(training)  # type: ignore[arg-type]
    assert batch is not None
    assert batch.rows == (tuple(range(length)),)
