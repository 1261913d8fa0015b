"""``megads evaluate --tasks``, in this process and on two ranks."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from megads.cli.evaluate import evaluate
from megads.cli.harness import OFFLINE, write_result
from megads.errors import ConfigError
from tests.evaluate.lm_eval.tiny import model_folder, tasks_folder


def test_tasks_print_a_table_and_write_their_numbers(tmp_path, monkeypatch):
    for name in OFFLINE:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    target = tmp_path / "result.json"
    words = [str(model_folder("llama3")), "--tasks", "tiny_choice,tiny_text", "--include-path", str(tasks_folder())]
    done = CliRunner().invoke(evaluate, [*words, "--output", str(target), "--limit", "4"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "|tiny_choice|" in done.stdout
    found = json.loads(target.read_text())
    assert set(found["results"]) == {"tiny_choice", "tiny_text"}
    assert "samples" not in found
    assert [os.environ[name] for name in OFFLINE] == ["1", "1"]


@pytest.mark.parametrize("words", [[], ["--tasks", "a", "--data", "b"]])
def test_one_of_data_and_tasks(words):
    with pytest.raises(ConfigError, match="pass --data FILE with a text, or --tasks NAME,NAME to run tasks"):
        CliRunner().invoke(evaluate, ["run", *words], catch_exceptions=False)


def test_what_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=f"--output {tmp_path}: Is a directory"):
        write_result(str(tmp_path), "")
