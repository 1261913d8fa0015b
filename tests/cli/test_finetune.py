"""``megads finetune`` in this process: what it prints before ranks start, and what it refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megads.cli import main
from tests.data.tasks.files import race_object, write_json_rows, write_race

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
