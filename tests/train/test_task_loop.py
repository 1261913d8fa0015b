"""The loop of a task on real engines: the best checkpoint, scores without dropout, stops and resumes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.data.tasks.files import write_json_rows
from tests.parity.layouts import VOCAB, Layout
from tests.parity.loops import Scripted, state_of
from tests.ranks import groups_of, run_ranks

SETTINGS = {
    "model.num_layers": "2",
    "model.num_classes": "2",
    "model.vocab_size": str(VOCAB),
    "model.hidden_dropout": "0.3",
    "model.attention_dropout": "0.3",
    "train.micro_batch": "2",
    "train.eval_at_start": "false",
    "optim.lr": "0.01",
    "optim.lr_decay_iters": "8",
    "data.num_workers": "0",
    "data.tokenizer_type": "NullTokenizer",
    "finetune.task": "jsonl",
    "checkpoint.save_interval": "100",
}
EPOCH = 2  # steps; 17 examples, 8 in a step
SCORES = [(0.5, 0.1), (0.75, 0.9), (0.75, 0.2), (0.25, 0.05)]
"""Accuracy and loss after each epoch: the best is neither the last, nor the last of equal ones, nor that by loss."""


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    drawn = random.Random(seed)  # no text has token 0: transformers does not train the embedding of padding
    texts = [[drawn.randrange(1, VOCAB - 1) for _ in range(drawn.randint(1, 12))] for _ in range(count)]
    return [{"text": " ".join(map(str, text)), "label": number % 2} for number, text in enumerate(texts)]


@pytest.fixture
def files(tmp_path):
    train, valid = (write_json_rows(tmp_path / f"{n}.jsonl", _rows(count, count)) for n, count in (("t", 17), ("v", 7)))
    return {"finetune.train_data": train, "finetune.valid_data": valid}


def task_loop(layout: Layout, folder: Path, **changes: str) -> Any:
    """Return this rank's loop of a task, gone on from the newest checkpoint in ``folder``. Collective."""
    import torch

    from megads.device.vendor import vendor
    from megads.engine.build import make_engine
    from megads.monitor.metrics import MetricsFile
    from megads.train.fault.stop import Deadline, StopRequest
    from megads.train.resume import resume
    from megads.train.setup import Training
    from megads.train.splits import task_splits
    from megads.train.task_loop import TaskLoop

    groups, device = groups_of(**layout.degrees), torch.device("cpu")
    folder.mkdir(exist_ok=True)
    run = layout.run(**{**SETTINGS, **changes})
    splits, data = task_splits(run)
    engine = Scripted(make_engine(run, groups, device, None), {})
    training = Training(run, folder, groups, vendor({"MEGADS_DEVICE": "cpu"}), device, engine, splits, data=data)
    resume(training)
    stop = StopRequest(folder, groups, device, in_place=False, deadline=Deadline(0.0, 1.0))
    metrics = MetricsFile(folder / "metrics.jsonl", training.progress.iteration) if groups.rank == 0 else None
    return TaskLoop(training, stop, metrics)


def _run(loop: Any) -> Any:
    outcome = loop.run()
    if loop.reporter is not None:
        loop.reporter.metrics.close()
    return outcome


def _scored(folder: Path) -> list[dict[str, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "valid_accuracy" in row]


def _keeps_the_best(folder: Path, files: dict[str, str]) -> None:
    from megads.train import task_loop as module
    from megads.train.task_scores import Score, TaskScores

    scripted = iter(SCORES)

    def score_files(*args: Any, **more: Any) -> TaskScores:
        accuracy, loss = next(scripted)
        return TaskScores({"v": Score(int(4 * accuracy), 4, 4 * loss)}, has_f1=True)

    real, module.score_files = module.score_files, score_files
    try:
        loop = task_loop(Layout("gpt"), folder, **files, **{"train.train_iters": "8", "checkpoint.keep": "1"})
        outcome = _run(loop)
    finally:
        module.score_files = real
    assert (loop.training.progress.best_iteration, loop.training.progress.best_accuracy) == (2 * EPOCH, 0.75)
    assert outcome.message.startswith("done; best accuracy 75.00%, ")
    assert outcome.message.endswith("iter_0000004")
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"iter_0000004", "iter_0000008"}


def test_the_first_with_the_highest_accuracy_stays(tmp_path, files):
    run_ranks(1, _keeps_the_best, tmp_path / "run", files)
    rows = _scored(tmp_path / "run")
    assert [(row["epoch"], row["best_iteration"], row["best_accuracy"]) for row in rows] == [
        (1, 2, 0.5),
        (2, 4, 0.75),
        (3, 4, 0.75),
        (4, 4, 0.75),
    ]


def _scores_without_dropout(folder: Path, files: dict[str, str]) -> None:
    import torch

    loop = task_loop(Layout("gpt-dropout"), folder, **files, **{"train.train_iters": "2"})
    _run(loop)
    first, second = (loop._score()[0].row() for _ in range(2))
    assert first == second
    engine, (samples,) = loop.training.engine, loop.training.splits["valid"]
    parts = engine.split([torch.stack([torch.from_numpy(samples[i]) for i in range(len(samples.file.examples))])])
    engine.module.eval()
    with torch.no_grad():
        scores = engine.module(parts[0].tokens, documents=parts[0].documents)
        loss = torch.nn.functional.cross_entropy(scores, parts[0].labels)
    assert first["valid_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_scores_are_those_of_the_model_without_dropout(tmp_path, files):
    run_ranks(1, _scores_without_dropout, tmp_path / "run", files)


def _resumes(layout: Layout, folder: Path, files: dict[str, str]) -> None:
    changes = {**files, "train.train_iters": "6"}
    loop = task_loop(layout, folder / "whole", **changes)
    assert _run(loop).exit_code == 0
    whole = state_of(loop)
    for stop in (1, EPOCH, EPOCH + 1):  # in an epoch, at its end, behind it
        name = folder / f"stopped-{stop}"
        assert _run(task_loop(layout, name, **changes, **{"train.exit_interval": str(stop)})).exit_code == 75
        again = task_loop(layout, name, **changes)
        assert again.training.progress.iteration == stop
        assert _run(again).exit_code == 0
        assert state_of(again) == whole
    ended = task_loop(layout, folder / "whole", **changes)  # at the very end there is nothing left to do
    assert ended.training.progress.iteration == 6
    assert _run(ended).exit_code == 0
    assert state_of(ended) == whole


@pytest.mark.parametrize("layout", [Layout("gpt-dropout", dp=2, zero=2), Layout("gpt-dropout", pp=2)], ids=str)
def test_a_run_that_stops_anywhere_ends_with_the_same_bits_and_scores(tmp_path, layout, files):
    run_ranks(2, _resumes, layout, tmp_path, files)
    whole = _scored(tmp_path / "whole")
    assert [row["iteration"] for row in whole] == [2, 4, 6]
    for stop in (1, EPOCH, EPOCH + 1):
        assert _scored(tmp_path / f"stopped-{stop}") == whole


def _owes_scores(folder: Path, files: dict[str, str]) -> None:
    changes = {**files, "train.train_iters": "6", "finetune.test_data": files["finetune.valid_data"]}
    loop = task_loop(Layout("gpt"), folder, **changes, **{"train.micro_batch": "1"})
    agreed, seen = loop.stop.agreed, []

    def asked(*, step: bool = True, **due: bool) -> str:
        seen.append(step)
        is_scoring = not step and loop.training.progress.iteration == EPOCH
        return "asked to stop" if is_scoring else str(agreed(step=step, **due))

    from megads.train import task_scores

    real, task_scores.AT_ONCE = task_scores.AT_ONCE, 1
    try:
        loop.stop.agreed = asked
        assert _run(loop).exit_code == 75
        assert loop.training.progress.owes_validation
        assert not (folder / "predictions").exists()
        again = task_loop(Layout("gpt"), folder, **changes)
        assert again.training.progress.owes_validation
        assert _run(again).exit_code == 0
    finally:
        task_scores.AT_ONCE = real
    assert not again.training.progress.owes_validation
    assert len((folder / "predictions/v.jsonl").read_text().splitlines()) == 7


def test_what_a_stop_interrupts_is_scored_on_resume(tmp_path, files):
    run_ranks(1, _owes_scores, tmp_path / "run", files)
    assert [row["iteration"] for row in _scored(tmp_path / "run")] == [2, 4, 6]


def _starts_from(folder: Path, files: dict[str, str]) -> None:
    import torch

    def head_after(name: str, classes: str) -> Any:
        load = {"checkpoint.load": str(folder / "whole"), "checkpoint.finetune": "true", "finetune.classes": classes}
        loop = task_loop(Layout("gpt"), folder / name, **files, **{"train.train_iters": "2", **load})
        return {key: value.detach().clone() for key, value in loop.training.engine.module.named_parameters()}

    loop = task_loop(Layout("gpt"), folder / "whole", **files, **{"train.train_iters": "2", "finetune.classes": "0 1"})
    new = {key: value.detach().clone() for key, value in loop.training.engine.module.named_parameters()}
    _run(loop)
    trained = dict(loop.training.engine.module.named_parameters())
    same, other = head_after("same", "0 1"), head_after("other", "1 0")
    assert torch.equal(same["classifier.weight"], trained["classifier.weight"])
    assert torch.equal(other["classifier.weight"], new["classifier.weight"])
    assert not torch.equal(new["classifier.weight"], trained["classifier.weight"])
    assert all(torch.equal(other[key], trained[key]) for key in trained if not key.startswith("classifier."))


def test_a_head_of_other_classes_is_new_and_all_else_is_read(tmp_path, files):
    run_ranks(1, _starts_from, tmp_path, files)


def _equals_transformers(folder: Path, files: dict[str, str]) -> None:
    """Finetune a BERT of transformers in ours and in a plain loop: the same data, order, head and rate."""
    import numpy as np
    import torch
    import transformers

    from megads.checkpoint.convert.huggingface.import_ import import_folder

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=16, num_labels=2, **sizes, **dropout)
    torch.manual_seed(1)
    transformers.BertForPreTraining(config).save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    same = {"model.num_heads": "4", "model.num_kv_heads": "4", "model.head_dim": "8", "model.max_positions": "16"}
    plain = {
        **{"model.hidden_dropout": "0", "model.attention_dropout": "0", "train.micro_batch": "4"},
        **{"model.activation": "gelu", "model.norm_epsilon": "1e-12", "optim.weight_decay": "0", "optim.lr": "3e-3"},
        **{"optim.clip_grad": "1.0", "optim.lr_decay_style": "constant"},
        **{"checkpoint.load": str(folder / "ours"), "checkpoint.finetune": "true", "train.train_iters": "8"},
    }
    loop = task_loop(Layout("bert-original"), folder / "run", **files, **same, **plain)
    ours = dict(loop.training.engine.module.named_parameters())
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder / "theirs")
    with torch.no_grad():
        for name in ("weight", "bias"):  # the head is new, and begins as ours
            getattr(theirs.classifier, name).copy_(ours[f"classifier.{name}"])
    assert torch.equal(theirs.bert.pooler.dense.weight, ours["pooler.dense.weight"])
    samples, (held_out,) = loop.training.splits["train"], loop.training.splits["valid"]
    optim = loop.training.run.optim
    optimizer = torch.optim.AdamW(
        theirs.parameters(), optim.lr, betas=(optim.adam_beta1, optim.adam_beta2), eps=optim.adam_eps, weight_decay=0.0
    )

    def scores(rows: Any) -> Any:
        batch = torch.from_numpy(np.stack(rows))
        real = torch.arange(16) < batch[:, 32:33]
        text, types = batch[:, :16], batch[:, 16:32]
        return theirs(text, attention_mask=real.long(), token_type_ids=types).logits, batch[:, -1]

    curve, losses = [], []
    for step in range(8):
        theirs.train()
        for group in optimizer.param_groups:
            group["lr"] = loop.schedule.at(8 * step).lr
        logits, labels = scores([samples[8 * step + i] for i in range(8)])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % EPOCH == EPOCH - 1:
            with torch.no_grad():
                logits, labels = scores([held_out[i] for i in range(len(held_out.file.examples))])
                likely = torch.nn.functional.cross_entropy(logits, labels)
            curve.append((float((logits.argmax(1) == labels).float().mean()), float(likely)))
    assert _run(loop).exit_code == 0
    found = [(row["valid_accuracy"], row["valid_loss"]) for row in _scored(folder / "run")]
    assert [accuracy for accuracy, _ in found] == pytest.approx([accuracy for accuracy, _ in curve])
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in curve], rel=1e-5)
    rows = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    mine = [row["lm_loss"] for row in rows if "lm_loss" in row]
    assert mine == pytest.approx(losses, rel=1e-5)
    assert min(losses) < losses[0] - 0.02


def test_a_bert_of_transformers_learns_as_in_a_plain_loop_of_transformers(tmp_path, files):
    run_ranks(1, _equals_transformers, tmp_path, files)
