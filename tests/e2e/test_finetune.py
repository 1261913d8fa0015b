"""megads finetune as a user calls it: pretrained, from random weights, stopped and resumed, and the seeds' scripts."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.writer import IndexedWriter
from tests.data.tasks.files import race_object, write_json_rows, write_mnli, write_race
from tests.e2e.test_resume import wait_for_step
from tests.forks.popen import server

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
        "train": write_json_rows(megads.folder / "train.jsonl", rows(107, 1)),
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
    assert [(row["iteration"], row["epoch"]) for row in found] == [(0, 0), (6, 1), (12, 2)]
    best = max(found[1:], key=lambda row: row["valid_accuracy"])
    names = {f"iter_{iteration:07d}" for iteration in (best["iteration"], 12)}
    assert {path.name for path in (megads.folder / "whole/checkpoints").iterdir()} == names
    outcome = json.loads((megads.folder / "whole/outcome.json").read_text())["message"]
    assert outcome.startswith(f"done; best accuracy {best['valid_accuracy']:.2%}, whole/checkpoints/iter_")
    for row in found:  # 37 and 21 examples on two ranks: each is counted once
        parts = [row[f"valid_accuracy/{name}.jsonl"] * count for name, count in (("a", 37), ("b", 21))]
        assert sum(parts) == pytest.approx(58 * row["valid_accuracy"])
        assert all(part == pytest.approx(round(part)) for part in parts)
    stopped = finetune(megads, "parts", "--epochs", "2", EXIT_INTERVAL="8", **dropout)
    assert stopped.returncode == 75, stopped.stderr
    rest = finetune(megads, "parts", "--epochs", "2", **dropout)
    assert rest.returncode == 0, rest.stderr
    assert megads.losses("parts") == megads.losses("whole")
    assert scores(megads, "parts") == found


def test_a_signal_in_an_epoch_saves_and_the_same_command_resumes(megads, files):
    given = ("finetune", "--task", "jsonl", "--train-data", "train.jsonl", "--valid-data", "a.jsonl", "--epochs", "999")
    process = megads.start(*given, RUN_DIR="r", **MODEL)
    wait_for_step(process, megads.folder / "r", 3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    iteration = json.loads((megads.folder / "r/outcome.json").read_text())["iteration"]
    assert (megads.folder / f"r/checkpoints/iter_{iteration:07d}").is_dir()
    again = megads(*given, RUN_DIR="r", EXIT_INTERVAL="1", **MODEL)
    assert again.returncode == 75, again.stderr
    assert f"resuming from iteration {iteration}: " in again.stdout + again.stderr
    steps = [row["iteration"] for row in megads.rows("r") if "lm_loss" in row]
    assert steps == list(range(1, iteration + 2))


def predictions(megads, name, file):
    path = megads.folder / name / "predictions" / f"{file}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def agrees_with_transformers(megads, rows, predicted):
    """Export the finetuned run "pretrained", and hold what transformers makes of texts against our predictions."""
    import torch
    import transformers

    done = megads("checkpoint", "export-hf", "pretrained", "theirs", "--dtype", "fp32")
    assert done.returncode == 0, done.stderr
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(megads.folder / "theirs")
    assert theirs.config.id2label == {0: "even", 1: "odd"}
    for row, ours in list(zip(rows, predicted, strict=True))[:9]:
        text = [*map(int, row["text"].split()), 255]  # the tokenizer's end of document
        with torch.no_grad():
            likely, best = theirs(torch.tensor([text])).logits.softmax(1)[0].max(0)
        assert theirs.config.id2label[int(best)] == ours["predicted"]
        assert float(likely) == pytest.approx(ours["probability"], abs=1e-5)


def topics():
    """Return two sets of words; a text is of one of them, and that is its label."""
    words = list(range(3, 203))
    random.Random(7).shuffle(words)
    return words[:100], words[100:]


def test_from_a_pretrained_checkpoint_a_task_is_learnt_faster_than_from_random_weights(megads):
    """Pretraining sees which words go together, the few examples to train on do not show all of them."""
    drawn = random.Random(8)
    with IndexedWriter(str(megads.folder / "corpus"), np.uint16) as writer:
        for number in range(3000):
            writer.add_document(np.array(drawn.choices(topics()[number % 2], k=17)))
        writer.finalize()
    for name, count in (("train", 48), ("valid", 101)):
        texts = [(drawn.choices(topics()[number % 2], k=8), number % 2) for number in range(count)]
        rows = [{"text": " ".join(map(str, words)), "label": ("even", "odd")[label]} for words, label in texts]
        write_json_rows(megads.folder / f"{name}.jsonl", rows)
    model = {**MODEL, "VOCAB_SIZE": "256", "MICRO_BATCH": "16", "SAVE_INTERVAL": "0"}
    lm = {**model, "DATA_PATH": "corpus", "GLOBAL_BATCH": "32", "LR": "0.01", "EVAL_INTERVAL": "0"}
    done = megads.train("lm", **{**lm, "TRAIN_ITERS": "80", "VAL_SPLIT": "0", "EVAL_ITERS": "0"})
    assert done.returncode == 0, done.stderr
    words = ("--task", "jsonl", "--train-data", "train.jsonl", "--valid-data", "valid.jsonl", "--epochs", "4")
    write_json_rows(megads.folder / "blind.jsonl", [{"text": row["text"]} for row in rows])
    write_json_rows(megads.folder / "odd.jsonl", [row for row in rows if row["label"] == "odd"])
    found = {}
    pretrained = ("--pretrained-checkpoint", "lm", "--test-data", "blind.jsonl")
    for name, more in (("random", ()), ("pretrained", pretrained)):
        done = megads("finetune", *words, *more, RUN_DIR=name, **model)
        assert done.returncode == 0, done.stderr
        found[name] = [row["valid_accuracy"] for row in scores(megads, name)][1:]
    for name, found_there in found.items():
        sys.stdout.write(f"{name}: {', '.join(f'{accuracy:.1%}' for accuracy in found_there)}\n")
    assert "head     new: classifier.weight; unused: head.weight\n" in done.stderr
    assert max(found["pretrained"]) > 0.95
    assert max(found["pretrained"][:3]) > max(found["random"]) + 0.05
    best = predictions(megads, "pretrained", "blind")  # of the best checkpoint, which the scores say
    right = [row["label"] == each["predicted"] for row, each in zip(rows, best, strict=True)]
    assert sum(right) / len(right) == max(found["pretrained"])
    assert sorted(best[0]) == ["index", "predicted", "probability"]
    assert [each["index"] for each in best] == list(range(101))
    last = ("--load", "pretrained", "--epochs", "0")
    given = ("--valid-data", "valid.jsonl", "odd.jsonl", "--test-data", "valid.jsonl", "blind.jsonl")
    more = {**model, "MICRO_BATCH": "7", "GLOBAL_BATCH": ""}
    scored = megads("finetune", *words[:2], *last, *given, RUN_DIR="scored", **more)
    assert scored.returncode == 0, scored.stderr
    (row,) = scores(megads, "scored")  # odd.jsonl has one of two classes: which there are, the checkpoint knows
    assert row["valid_accuracy/valid.jsonl"] == found["pretrained"][-1]
    labelled, unlabelled = (predictions(megads, "scored", name) for name in ("valid", "blind"))
    assert [each.pop("label") for each in labelled] == [row["label"] for row in rows]
    assert labelled == unlabelled
    odd = [each["predicted"] == "odd" for each, row in zip(labelled, rows, strict=True) if row["label"] == "odd"]
    assert row["valid_accuracy/odd.jsonl"] == sum(odd) / len(odd)
    assert all(0.5 <= each["probability"] <= 1 for each in labelled)
    agrees_with_transformers(megads, rows, labelled)
    write_json_rows(megads.folder / "numbers.jsonl", [{"text": "5", "label": label} for label in (0, 1)])
    for command, why in REFUSED:
        done = megads(*command, **model)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (line,) = done.stderr.splitlines()
        assert re.fullmatch(why, line.removeprefix("megads: ")), line


JSONL = ("finetune", "--task", "jsonl", "--train-data", "train.jsonl")
REFUSED = [
    (("finetune",), "no task is named; pass --task MNLI, QQP, RACE or jsonl"),
    (("finetune", "--task", "SQUAD"), "--task: .*SQUAD.*"),
    (("finetune", "--task", "MNLI", "--train-data", "none.tsv"), "none.tsv: no such file; pass the file of the task"),
    ((*JSONL, "--set", "train.global_batch=64"), "GLOBAL_BATCH=64 is larger than the 48 examples to train on; .*"),
    ((*JSONL, "--set", "train.rampup_batch_size=16,16,64"), "RAMPUP_BATCH_SIZE='16,16,64': all steps of an epoch .*"),
    (
        ("finetune", "--task", "jsonl", "--epochs", "0"),
        "TASK=jsonl has no files to score; pass .*",
    ),
    (
        ("finetune", "--task", "jsonl", "--epochs", "0", "--valid-data", "valid.jsonl"),
        "--epochs 0 scores a finetuned checkpoint, and there is none; pass --load RUN",
    ),
    (
        ("finetune", "--task", "jsonl", "--epochs", "0", "--load", "lm", "--valid-data", "valid.jsonl"),
        ".*iter_0000080: has no head of a task, TASK=jsonl needs 2; --epochs 0 scores a finetuned checkpoint, .*",
    ),
    (
        (*JSONL[:3], "--epochs", "0", "--load", "lm", "--test-data", "blind.jsonl"),
        "blind.jsonl:1: no file has labels, so the classes are not known; pass --load RUN, or set TASK_CLASSES",
    ),
    ((*JSONL, "--class-names", "a", "b"), "train.jsonl:1: label 'even' is not one of the classes, which are a, b"),
    (
        (*JSONL[:3], "--epochs", "0", "--load", "pretrained", "--valid-data", "numbers.jsonl"),
        "numbers.jsonl:1: label '0' is not one of the classes, which are even, odd",
    ),
    (
        (*JSONL, "--set", "dir=pretrained", "--class-names", "odd", "even"),
        ".*: its classes are even odd, .*",
    ),
    (("train", "--task", "jsonl"), "TASK=jsonl is read by megads finetune only; .*"),
    (("generate", "pretrained", "--prompt", "3"), ".*iter_0000012: a finetuned model, which scores texts .*"),
]


@pytest.fixture
def script(megads):
    """Return what runs a script of examples/ with tiny files, on one rank."""
    programs = megads.folder / "bin"
    programs.mkdir()
    client = f'"{sys.executable}" -I -S "{ROOT}/tests/forks/client.py" "{server().address}"'
    (programs / "megads").write_text(f'#!/bin/sh\nexec {client} "$@"\n')
    (programs / "megads").chmod(0o755)

    def run(name, *words, **variables):
        env = {
            **{"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(megads.folder), "PYTHONPATH": str(ROOT)},
            **{"MACHINE": "cpu", "OMP_NUM_THREADS": "1", "DATA_CACHE_PATH": str(megads.cache)},
            **{"LAUNCHER": "", "WORLD_SIZE": "1", "VOCAB_FILE": "vocab.txt", **variables},
        }
        command = ["bash", str(ROOT / f"examples/{name}.sh"), *words]
        return subprocess.run(command, cwd=megads.folder, env=env, capture_output=True, text=True)

    return run


def test_the_scripts_of_megatron_run_as_they_are_written(megads, script):
    """A tiny BERT in place of the 345M one: what is pretrained decides the shape."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four", "five", "?", "."]
    (megads.folder / "vocab.txt").write_text("\n".join(words) + "\n")
    write_json_rows(
        megads.folder / "j.jsonl", [{"text": words[5 + number % 5], "label": number % 2} for number in range(8)]
    )
    tiny = {
        **{"MODEL_FAMILY": "bert", "NLAYERS": "1", "HEADS": "1", "NUM_KV_HEAD": "1", "HIDDEN": "8"},
        "VOCAB_FILE": "vocab.txt",
        "MAX_POSITIONS": "512",
        "TOKENIZER_TYPE": "BertWordPieceLowerCase",
    }
    given = ("finetune", "--task", "jsonl", "--train-data", "j.jsonl", "--epochs", "1")
    made = megads(*given, RUN_DIR="bert", **{**MODEL, **tiny, "VOCAB_SIZE": "", "GLOBAL_BATCH": "8"})
    assert made.returncode == 0, made.stderr
    pairs = [(words[5 + n % 5], words[5 + n % 3], ("neutral", "entailment", "contradiction")[n % 3]) for n in range(9)]
    for name, count in (("train", 9), ("matched", 5), ("mismatched", 3)):
        write_mnli(megads.folder / f"{name}.tsv", pairs[:count])
    done = script(
        "finetune_mnli_distributed",
        **{"TRAIN_DATA": "train.tsv", "VALID_DATA": "matched.tsv mismatched.tsv"},
        **{"PRETRAINED_CHECKPOINT": "bert", "CHECKPOINT_PATH": "out/mnli"},
    )
    assert done.returncode == 0, done.stderr
    assert "--num-layers" not in done.stdout
    assert (
        "head     new: classifier.weight, classifier.bias; unused: classifier.weight, classifier.bias\n" in done.stderr
    )
    rows = scores(megads, "runs/mnli")
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(f"valid_accuracy/{name}.tsv" in row for row in rows for name in ("matched", "mismatched"))
    steps = [row for row in megads.rows("runs/mnli") if "lm_loss" in row]
    assert [row["iteration"] for row in steps] == [1, 2, 3, 4, 5]
    assert steps[0]["global_batch_size"] == 8
    assert list((megads.folder / "out/mnli").glob("iter_*"))
    write_race(megads.folder / "middle", {f"{number}.txt": race_object("one two . three") for number in range(2)})
    write_race(megads.folder / "high", {"1.txt": race_object("four", questions=["five _ ?"], answers="A")})
    done = script(
        "finetune_race_distributed",
        **{"TRAIN_DATA": "middle", "VALID_DATA": "middle high"},
        **{"PRETRAINED_CHECKPOINT": "bert", "CHECKPOINT_PATH": "out/race"},
    )
    assert done.returncode == 0, done.stderr
    rows = scores(megads, "runs/race")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert {row["valid_accuracy/high"] for row in rows} <= {0.0, 1.0}
    assert "task     RACE, 4 choices: 4 examples of 1 file, 3 epochs; scored on 5 examples of 2 files\n" in done.stderr
