"""megads finetune as a user calls it: pretrained, from random weights, stopped and resumed, and the seeds' scripts."""

import json
import random
from pathlib import Path

import pytest

from tests.data.tasks.files import write_json_rows

ROOT = Path(__file__).parents[2]
WORDS = 40
MODEL = {
    **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "64", "HIDDEN": "32", "SEQ": "16", "MICRO_BATCH": "8"},
    **{"GLOBAL_BATCH": "16", "LR": "0.002", "TRAIN_ITERS": "", "EVAL_INTERVAL": "", "VAL_SPLIT": ""},
}


def rows(count, seed, first=3):
    """Return texts whose label is whether a number occurs twice in a row: a task that pretraining on copies helps."""
    drawn = random.Random(seed)
    found = []
    for number in range(count):
        words = drawn.sample(range(first, WORDS), 7)
        label = number % 2
        if label:
            at = drawn.randrange(6)
            words[at + 1] = words[at]
        found.append({"text": " ".join(map(str, words)), "label": label})
    return found


@pytest.fixture
def files(megads):
    return {
        "train": write_json_rows(megads.folder / "train.jsonl", rows(203, 1)),
        "a": write_json_rows(megads.folder / "a.jsonl", rows(37, 2)),
        "b": write_json_rows(megads.folder / "b.jsonl", rows(21, 3)),
    }


def finetune(megads, name, *words, **settings):
    given = ("--task", "jsonl", "--train-data", "train.jsonl", "--valid-data", "a.jsonl", "b.jsonl")
    return megads("finetune", *given, *words, RUN_DIR=name, **{**MODEL, **settings})


def scores(megads, name):
    return [row for row in megads.rows(name) if "valid_accuracy" in row]


def test_a_task_is_learnt_scored_and_resumed_in_the_middle_of_an_epoch_bitwise(megads, files):
    dropout = {"HIDDEN_DROPOUT": "0.1", "DP": "2", "CKPT_KEEP": "1"}
    whole = finetune(megads, "whole", "--epochs", "2", **dropout)
    assert whole.returncode == 0, whole.stderr
    found = scores(megads, "whole")
    assert [(row["iteration"], row["epoch"]) for row in found] == [(0, 0), (12, 1), (24, 2)]
    best = max(found[1:], key=lambda row: row["valid_accuracy"])
    names = {f"iter_{iteration:07d}" for iteration in (best["iteration"], 24)}
    assert {path.name for path in (megads.folder / "whole/checkpoints").iterdir()} == names
    outcome = json.loads((megads.folder / "whole/outcome.json").read_text())["message"]
    assert outcome.startswith(f"done; best accuracy {best['valid_accuracy']:.2%}, whole/checkpoints/iter_")
    for row in found:  # 37 and 21 examples on two ranks: each is counted once
        parts = [row[f"valid_accuracy/{name}.jsonl"] * count for name, count in (("a", 37), ("b", 21))]
        assert sum(parts) == pytest.approx(58 * row["valid_accuracy"])
        assert all(part == pytest.approx(round(part)) for part in parts)
    stopped = finetune(megads, "parts", "--epochs", "2", EXIT_INTERVAL="17", **dropout)
    assert stopped.returncode == 75, stopped.stderr
    rest = finetune(megads, "parts", "--epochs", "2", **dropout)
    assert rest.returncode == 0, rest.stderr
    assert megads.losses("parts") == megads.losses("whole")
    assert scores(megads, "parts") == found
    again = finetune(megads, "whole", "--epochs", "2", **dropout)
    assert "whole is complete (24 iterations)" in again.stderr
