"""``megads finetune`` in this process: what it prints before ranks start, and what it refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megads.cli import main
from megads.comm.grid import Grid
from tests.checkpoint.convert.huggingface.models import write_checkpoint
from tests.data.tasks.files import race_object, write_json_rows, write_mnli, write_qqp, write_race
from tests.models import shapes

SIZES = {
    **{"MACHINE": "cpu", "NLAYERS": "2", "HIDDEN": "32", "HEADS": "4", "SEQ": "16", "TOKENIZER_TYPE": "NullTokenizer"},
    **{"VOCAB_SIZE": "64", "MICRO_BATCH": "2", "GRAD_ACC_STEPS": "1", "DP": "1", "WORLD_SIZE": "", "RANK": ""},
}


@pytest.fixture
def dry_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words, **env):
        return CliRunner().invoke(main, ["finetune", *words, "--dry-run"], env={**SIZES, **env})

    return call


def test_the_banner_knows_the_task_and_its_head(tmp_path, dry_run):
    write_json_rows(tmp_path / "t.jsonl", [{"text": str(n), "label": n % 3} for n in range(22)])
    write_json_rows(tmp_path / "b.jsonl", [{"text": "5"}])
    done = dry_run("--task", "jsonl", "--train-data", "t.jsonl", "--test-data", "b.jsonl", "--epochs", "2")
    assert done.exit_code == 0, done.output
    assert (
        "task     jsonl, 3 classes: 22 examples of 1 file, 2 epochs; scored on 0 examples of 0 files; " in done.output
    )
    assert "predicts 1 example of 1 file\n" in done.output
    assert "16 tokens per sample, 32 tokens per step" in done.output
    assert "train    22 iterations, " in done.output


def test_every_choice_of_race_counts(tmp_path, dry_run):
    write_race(tmp_path / "race", {"1.txt": race_object()})
    done = dry_run("--task", "RACE", "--train-data", "race", "--epochs", "1")
    assert done.exit_code == 0, done.output
    assert "RACE, 4 choices: 2 examples of 1 file, 1 epoch" in done.output
    assert "64 tokens per sample, 128 tokens per step" in done.output


def test_a_broken_file_is_one_line(tmp_path, dry_run):
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    done = dry_run("--task", "jsonl", "--train-data", "t.jsonl")
    assert done.exit_code == 2
    assert done.output == "megads: t.jsonl:1: label is None; expected a text, a whole number, true or false\n"


COMMON = """--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --max-position-embeddings 512
    --fp16 --vocab-file vocab.txt"""
EXTENDED = """--train-data {train} --valid-data {valid} --pretrained-checkpoint checkpoints/bert_345m --save-interval
    10000
    --save checkpoints/out --log-interval 100 --eval-interval 1000 --eval-iters 10 --weight-decay 1.0e-1"""
SEEDS = [
    ("RACE", "RACE/train/middle", "RACE/dev/middle RACE/dev/high", "3", "4", "1.0e-5", "0.06"),
    ("MNLI", "MNLI/train.tsv", "MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv", "5", "8", "5.0e-5", "0.065"),
    ("QQP", "QQP/train.tsv", "QQP/dev.tsv", "12", "16", "4.0e-5", "0.065"),
]
"""Megatron-LM's README, with ``megads finetune`` in place of ``python tasks/main.py``."""


@pytest.mark.parametrize("last", [(), ("--keep-last",)], ids=["", "keep-last"])
@pytest.mark.parametrize(("task", "train", "valid", "epochs", "micro_batch", "rate", "warmup"), SEEDS)
def test_commands_of_megatron_run_as_they_are_written(
    tmp_path, monkeypatch, task, train, valid, epochs, micro_batch, rate, warmup, last
):
    monkeypatch.chdir(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    bert = shapes.BERT.model_copy(update={"max_positions": 512, "seq_length": 512, "vocab_size": 9, "num_layers": 1})
    write_checkpoint(tmp_path / "checkpoints/bert_345m", bert, Grid(), about={})
    examples = 2 * int(micro_batch) + 1
    for path in (train, *valid.split()):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if task == "RACE":
            objects = {f"{n}.txt": race_object(questions=("Why?",), answers="B") for n in range(examples)}
            write_race(tmp_path / path, objects)
        elif task == "MNLI":
            write_mnli(tmp_path / path, [("one", "two", "neutral")] * examples)
        else:
            write_qqp(tmp_path / path, [f"{n}\t1\t2\tone\ttwo\t{n % 2}" for n in range(examples)])
    command = f"""--task {task} {COMMON} {EXTENDED.format(train=train, valid=valid)} --tokenizer-type
        BertWordPieceLowerCase --epochs {epochs} --micro-batch-size {micro_batch} --lr {rate}
        --lr-warmup-fraction {warmup}"""
    env = {"MACHINE": "generic", "WORLD_SIZE": "", "RANK": "", "NGPU_PER_HOST": "1"}
    done = CliRunner().invoke(main, ["finetune", *command.split(), *last, "--dry-run"], env=env)
    assert done.exit_code == 0, done.output
    steps = int(epochs) * (3 if last else 2)
    assert f"train    {steps} iterations, " in done.output
    assert f"lr {float(rate):g} " in done.output
    files = len(valid.split())
    scored = f"{files * examples} examples of {files} file{'s' * (files > 1)}"
    assert f"{examples} examples of 1 file, {epochs} epochs; scored on {scored}\n" in done.output
    assert "bert, 1 layer, hidden 32, heads 8" in done.output  # what is pretrained decides the shape
