"""The five steps of ``megads detoxify`` on a trained run; annotations, counts and metrics made again by hand."""

from __future__ import annotations

import json
import re
import signal
import statistics

import pytest

KILLED = """
import signal
import megads.detoxify.output_lines as lines
write = lines.OutputLines.write
def killed(self, records):
    write(self, records)
    if self.done == 64:
        os.kill(os.getpid(), signal.SIGKILL)
lines.OutputLines.write = killed
"""
"""To plant: the process is killed behind the second block of 32 texts."""


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    from tests.e2e.conftest import Command

    command = Command(tmp_path_factory.mktemp("detoxify"), cache)
    done = command.train("run", TRAIN_ITERS="12", EVAL_INTERVAL="0", SAVE_INTERVAL="12")
    assert done.returncode == 0, done.stderr
    return command


def _records(run, name):
    return [json.loads(line) for line in (run.folder / name).read_text().splitlines()]


def _step(run, *words, **settings):
    done = run("detoxify", *words, **settings)
    assert done.returncode == 0, done.stderr
    return done


def _toxicity(text):
    """Return what the stub gives: of letters that every text has some."""
    return 1 - 0.5 ** sum(word in ("a", "e", "s", "t", "self") for word in re.findall(r"\w+", text.lower()))


def test_the_five_steps_by_hand(run):
    (run.folder / "words").write_text("a e s t self\n")
    _step(run, "generate", "run", "--num-samples", "40", "--max-tokens", "24", "--genfile", "own")
    own = _records(run, "own")
    assert [each["id"] for each in own] == list(range(40))
    _step(run, "annotate", "--data-path", "own", "--out-path", "scored", "--scorer", "stub", "--words", "words")
    scored = _records(run, "scored")
    expected = [_toxicity(each["text"]) if each["text"].strip() else None for each in own]
    assert [each["score"] and each["score"]["toxicity"] for each in scored] == expected
    assert len(set(expected)) > 1
    done = _step(run, "filter", "--data-path", "scored", "--out-path", "kept.jsonl", "--json", "filter.json")
    places = [each["id"] for each in _records(run, "kept.jsonl")]
    best = sorted((score, place) for place, score in enumerate(expected) if score is not None)[:20]
    assert sorted(places) == sorted(place for _, place in best)
    assert places != sorted(places)
    counts = json.loads((run.folder / "filter.json").read_text())
    scores = [each for each in expected if each is not None]
    assert counts["all"]["mean"] == pytest.approx(statistics.fmean(scores))
    assert counts["all"]["std"] == pytest.approx(statistics.pstdev(scores))
    assert counts["toxic"]["count"] == sum(each > 0.5 for each in scores)
    assert "20 of 40 lines" in done.stdout
    words = ("--load", "run", "--data-path2", "kept_text_document", "--eval-ppl", "--eval-iters", "1", "--lr", "1e-3")
    names = {"EVAL_INTERVAL": "2", "SAVE_INTERVAL": "", "TRAIN_ITERS": "2", "DTYPE": ""}
    done = _step(run, "finetune", "kept.jsonl", *words, **names)
    config = (run.folder / "runs/run-detoxified/config.yaml").read_text()
    found = dict(re.findall(r"^  (\w+): (\S+)", config, re.MULTILINE))
    wanted = {
        "lr": "0.001",
        "lr_decay_style": '"constant"',
        "dtype": '"fp32"',
        "seq_length": "32",
        "save_interval": "78",
    }
    assert {name: found[name] for name in wanted} == wanted
    assert len(re.findall(r"^megads (?:data preprocess|train) ", done.stderr, re.MULTILINE)) == 2
    rows = [json.loads(line) for line in (run.folder / "runs/run-detoxified/metrics.jsonl").read_text().splitlines()]
    assert any("valid_ppl" in row for row in rows)


MEGATRON = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 4 --global-batch-size 8 "
    "--seq-length 32 --max-position-embeddings 32 --train-iters 2 --save out --load run --data-path run/none.jsonl "
    "--data-path2 0.3 a 0.7 b --data-impl mmap --split 100,0,0 --distributed-backend nccl --lr-decay-style constant "
    "--lr 1e-4 --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --checkpoint-activations "
    "--log-interval 1 --save-interval 78 --eval-interval 78 --eval-iters 50 --fp16 --DDP-impl local --finetune "
    "--no-load-optim --log-validation-ppl-to-tensorboard --tensorboard-dir tb --eval-ppl"
)
"""A command line of Megatron-LM's finetune_gpt.py."""


def test_a_command_line_of_megatron_is_accepted(run):
    (run.folder / "run/none.jsonl").write_text('{"text": "a"}\n')
    done = _step(run, "finetune", *MEGATRON.split(), "--dry-run")
    first, second = done.stdout.splitlines()
    assert first.startswith(
        f"megads data preprocess --input {run.folder}/run/none.jsonl --output-prefix {run.folder}/run/none"
    )
    assert f"--data-path {run.folder}/run/none_text_document --valid-data-path 0.3 a 0.7 b --tokenizer-type" in second
    assert "--set name=run-detoxified" in second
    assert "--split=100,0,0" in second
    assert second.count("split") == 1


def test_the_metrics_of_continuations_by_hand(run):
    (run.folder / "words").write_text("a e s t self\n")
    (run.folder / "text.jsonl").write_text('{"text": "import os"}\n')
    kinds = [("def ", 0.1), ("import ", 0.9), ("class ", None)]
    lines = [json.dumps({"prompt": {"text": text, "toxicity": toxicity}}) + "\n" for text, toxicity in kinds]
    (run.folder / "prompts").write_text("".join(lines))
    _step(
        run,
        "generate",
        "--load",
        "run",
        "--sample-input-file",
        "prompts",
        "--continuations",
        "4",
        "--out-seq-length",
        "12",
    )
    _step(run, "annotate", "prompts.out", "--out-path", "scored.out", "--scorer", "stub", "--words", "words")
    made = _records(run, "scored.out")
    assert [each["prompt"] for each in made] == [text for text, _ in kinds for _ in range(4)]
    words = ("--load", "run", "--ppl-data", "text.jsonl", "--json", "numbers.json")
    done = _step(run, "evaluate", "scored.out", "--prompts", "prompts", *words)
    numbers = json.loads((run.folder / "numbers.json").read_text())
    highest = []
    for first in (0, 4, 8):
        texts = [each["text"] for each in made[first : first + 4]]
        highest.append(max(_toxicity(text) for text in texts if text.strip()))
    assert numbers["all"]["expected_maximum"] == pytest.approx(statistics.fmean(highest))
    assert numbers["all"]["std"] == pytest.approx(statistics.pstdev(highest))
    assert numbers["all"]["probability"] == sum(each >= 0.5 for each in highest) / 3
    assert numbers["nontoxic"]["expected_maximum"] == highest[0]
    assert numbers["toxic"]["expected_maximum"] == highest[1]
    assert numbers["unknown"] == 1
    alone = run("evaluate", "run", "--data", "text.jsonl", "--json", "alone.json")
    assert alone.returncode == 0, alone.stderr
    assert numbers["perplexity"] == pytest.approx(json.loads((run.folder / "alone.json").read_text())["ppl"], rel=1e-9)
    assert "probability (>= 0.5)" in done.stdout


def test_generation_that_is_killed_gives_the_same_bytes(run):
    words = ("generate", "run", "--num-samples", "160", "--max-tokens", "16", "--batch", "4", "--output")
    _step(run, *words, "whole")
    done = run("detoxify", *words, "killed", PYTHONPATH=run.plant(KILLED))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len((run.folder / "killed.part").read_text().splitlines()) == 64
    assert not (run.folder / "killed").exists()
    done = _step(run, *words, "killed")
    assert "160 texts, 64 of them by an earlier call" in done.stdout
    assert (run.folder / "killed").read_bytes() == (run.folder / "whole").read_bytes()
