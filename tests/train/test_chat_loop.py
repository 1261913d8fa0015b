"""The loop of chats on real engines: the best checkpoint, stops and resumes, and the curve of transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.parity.layouts import VOCAB, Layout
from tests.parity.loops import Scripted, state_of
from tests.ranks import groups_of, run_ranks

SETTINGS = {
    "model.num_layers": "2",
    "model.vocab_size": str(VOCAB),
    "train.micro_batch": "1",
    "train.global_batch": "2",
    "train.eval_at_start": "false",
    "optim.lr": "0.01",
    "optim.lr_decay_iters": "8",
    "data.num_workers": "0",
    "data.tokenizer_type": "NullTokenizer",
    "data.reset_attention_mask": "true",
    "data.reset_position_ids": "true",
    "finetune.task": "chat",
    "checkpoint.save_interval": "100",
}
EPOCH = 3  # steps of 17 chats
DROPOUT = {"model.hidden_dropout": "0.3", "model.attention_dropout": "0.3"}


def write(path: Path, count: int, seed: int) -> str:
    drawn = random.Random(seed)

    def text(least: int, most: int) -> str:
        return " ".join(str(drawn.randrange(1, VOCAB - 1)) for _ in range(drawn.randint(least, most)))

    rows = [{"prompt": text(1, 3), "response": text(1, 4)} for _ in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    names = {"t": 17, "v": 7, "w": 3}
    made = {name: write(tmp_path / f"{name}.jsonl", count, count) for name, count in names.items()}
    cache = {"data.cache_dir": str(tmp_path / "cache")}
    return {**cache, "finetune.train_data": made["t"], "finetune.valid_data": f"{made['v']} {made['w']}"}


def chat_loop(layout: Layout, folder: Path, **changes: str) -> Any:
    """Return this rank's loop of chats, gone on from the newest checkpoint in ``folder``. Collective."""
    import torch

    from megads.device.vendor import vendor
    from megads.engine.build import make_engine
    from megads.monitor.metrics import MetricsFile
    from megads.train.chat_loop import ChatLoop
    from megads.train.fault.stop import Deadline, StopRequest
    from megads.train.resume import resume
    from megads.train.setup import Training
    from megads.train.splits import task_splits

    groups, device = groups_of(**layout.degrees), torch.device("cpu")
    folder.mkdir(exist_ok=True)
    run = layout.run(**{**SETTINGS, **changes})
    splits, data = task_splits(run)
    engine = Scripted(make_engine(run, groups, device, None), {})
    training = Training(run, folder, groups, vendor({"MEGADS_DEVICE": "cpu"}), device, engine, splits, data=data)
    resume(training)
    stop = StopRequest(folder, groups, device, in_place=False, deadline=Deadline(0.0, 1.0))
    metrics = MetricsFile(folder / "metrics.jsonl", training.progress.iteration) if groups.rank == 0 else None
    return ChatLoop(training, stop, metrics)


def _run(loop: Any) -> Any:
    outcome = loop.run()
    if loop.reporter is not None:
        loop.reporter.metrics.close()
    return outcome


def _rows(folder: Path, key: str) -> list[dict[str, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if key in row]


def _keeps_the_best(folder: Path, files: dict[str, str]) -> None:
    from megads.train.chat_loop import AnswerLoss

    loop = chat_loop(Layout("gpt"), folder, **files, **{"train.train_iters": "12", "checkpoint.keep": "1"})
    # Two files of unequal sizes: their means are weighted by tokens.
    scripted = iter([(8.0, 4), (3.0, 2), (6.0, 4), (1.0, 2), (6.0, 4), (1.0, 2), (9.0, 4), (0.0, 2)])
    loop._loss_of = lambda *_: AnswerLoss(*next(scripted))
    outcome = _run(loop)
    done = loop.training.progress
    assert (done.best_iteration, done.best_valid_loss, done.first_valid_loss) == (2 * EPOCH, 7 / 6, 11 / 6)
    assert outcome.message.startswith("done; best loss 1.1667, ")
    assert outcome.message.endswith("iter_0000006")
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"iter_0000006", "iter_0000012"}


def test_the_first_with_the_lowest_loss_stays(tmp_path, files):
    run_ranks(1, _keeps_the_best, tmp_path / "run", files)
    rows = _rows(tmp_path / "run", "best_iteration")
    assert [(row["epoch"], row["best_iteration"], row["valid_loss/w.jsonl"]) for row in rows] == [
        (1, 3, 1.5),
        (2, 6, 0.5),
        (3, 6, 0.5),
        (4, 6, 0.0),
    ]


def _resumes(layout: Layout, folder: Path, files: dict[str, str]) -> None:
    changes = {**files, **DROPOUT, "train.train_iters": "7"}
    loop = chat_loop(layout, folder / "whole", **changes)
    assert _run(loop).exit_code == 0
    whole = state_of(loop)
    for stop in (1, EPOCH, EPOCH + 2):  # in an epoch, at its end, behind it
        name = folder / f"stopped-{stop}"
        assert _run(chat_loop(layout, name, **changes, **{"train.exit_interval": str(stop)})).exit_code == 75
        again = chat_loop(layout, name, **changes)
        assert again.training.progress.iteration == stop
        assert _run(again).exit_code == 0
        assert state_of(again) == whole


@pytest.mark.parametrize("layout", [Layout("gpt-dropout", dp=2, zero=2).on("native")], ids=str)
def test_a_run_that_stops_anywhere_ends_with_the_same_bits_and_losses(tmp_path, layout, files):
    blend = files["finetune.train_data"]
    files["finetune.train_data"] = f"0.6 {blend} 0.4 {files['finetune.valid_data'].split()[0]}"
    run_ranks(2, _resumes, layout, tmp_path, files)
    whole = _rows(tmp_path / "whole", "valid_loss")
    assert whole[-1]["iteration"] == 7
    assert len(whole) >= 2
    for stop in (1, EPOCH, EPOCH + 2):
        assert _rows(tmp_path / f"stopped-{stop}", "valid_loss") == whole


def _owes_losses(folder: Path, files: dict[str, str]) -> None:
    loop = chat_loop(Layout("gpt"), folder, **files, **{"train.train_iters": "6"})
    agreed = loop.stop.agreed

    def asked(*, step: bool = True, **due: bool) -> str:
        is_scoring = not step and loop.training.progress.iteration == EPOCH
        return "asked to stop" if is_scoring else str(agreed(step=step, **due))

    loop.stop.agreed = asked
    assert _run(loop).exit_code == 75
    assert loop.training.progress.owes_validation
    again = chat_loop(Layout("gpt"), folder, **files, **{"train.train_iters": "6"})
    assert again.training.progress.owes_validation
    assert _run(again).exit_code == 0
    assert not again.training.progress.owes_validation


def test_what_a_stop_interrupts_is_scored_on_resume(tmp_path, files):
    run_ranks(1, _owes_losses, tmp_path / "run", files)
    assert [row["iteration"] for row in _rows(tmp_path / "run", "valid_loss")] == [3, 6]


def _equals_transformers(folder: Path, files: dict[str, str]) -> None:
    """Finetune a Llama of transformers in ours, packed, and in a plain loop of transformers with each chat alone."""
    import torch
    import transformers

    from megads.checkpoint.convert.huggingface.import_ import import_folder
    from megads.data.chat.rows import ChatRow

    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(config)
    theirs.save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    same = {
        **{"model.num_heads": "4", "model.num_kv_heads": "2", "model.head_dim": "8"},
        **{"model.norm_epsilon": str(config.rms_norm_eps), "model.rope_theta": "10000"},
    }
    plain = {
        **{"optim.weight_decay": "0.1", "optim.lr": "3e-3", "optim.clip_grad": "1.0"},
        **{"optim.lr_decay_style": "constant", "train.train_iters": "6"},
        **{"checkpoint.load": str(folder / "ours"), "checkpoint.finetune": "true"},
    }
    loop = chat_loop(Layout(), folder / "run", **files, **same, **plain)
    row, samples, optim = ChatRow(16), loop.training.splits["train"], loop.training.run.optim
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    kept = [p for p in theirs.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}],
        optim.lr,
        betas=(optim.adam_beta1, optim.adam_beta2),
        eps=optim.adam_eps,
    )

    def loss_of(rows: list[Any]) -> Any:
        """Return the mean over the answers' tokens, each chat by itself, with transformers' own labels."""
        total: Any = 0.0
        count = 0
        for each in rows:
            numbers = each[row.numbers]
            for number in range(numbers.max() + 1):
                mine = numbers == number
                tokens = torch.from_numpy(each[row.tokens][mine])[None]
                # Theirs shift by themselves: the label of a token stands at its own place.
                labels = torch.full((1, tokens.shape[1] + 1), -100)
                found = torch.from_numpy(each[row.labels][mine])
                labels[0, 1:] = found.masked_fill(found < 0, -100)
                ids = torch.cat([tokens, labels[:, -1:]], dim=1)
                counted = int((found >= 0).sum())
                total = total + theirs(ids, labels=labels).loss * counted
                count += counted
        return total / count

    losses, norms = [], []
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = loop.schedule.at(2 * step).lr
        loss = loss_of([samples[2 * step + i] for i in range(2)])
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        held_out = [float(loss_of([rows[i] for i in range(len(rows.rows))])) for rows in loop.training.splits["valid"]]
    assert _run(loop).exit_code == 0
    mine = _rows(folder / "run", "lm_loss")
    assert [each["lm_loss"] for each in mine] == pytest.approx(losses, rel=1e-5)
    assert [each["grad_norm"] for each in mine] == pytest.approx(norms, rel=1e-4)
    last = _rows(folder / "run", "valid_loss")[-1]
    assert [last["valid_loss/v.jsonl"], last["valid_loss/w.jsonl"]] == pytest.approx(held_out, rel=1e-5)


def test_packed_chats_teach_an_imported_llama_what_transformers_teaches_it_with_each_alone(tmp_path, files):
    run_ranks(1, _equals_transformers, tmp_path, files)
