"""Tasks by their names: what is found, what is printed, and what cannot be used."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from megads.errors import ConfigError, DataError, DependencyError
from megads.evaluate.lm_eval.run import HarnessOptions, as_json, check_package, evaluate, table
from tests.evaluate.lm_eval.tiny import model_folder, session_of, tasks_folder


@pytest.fixture
def only_ours(monkeypatch):
    """Let lm-eval read no tasks of its own, more than 10,000 files."""
    from lm_eval.tasks import TaskManager

    made = TaskManager.__init__
    monkeypatch.setattr(
        TaskManager, "__init__", lambda self, *args, **more: made(self, *args, **{**more, "include_defaults": False})
    )


def _evaluate(*tasks: str, **more: Any) -> Any:
    wanted = HarnessOptions(tasks, **{"include_path": tasks_folder(), **more})
    return evaluate(session_of(model_folder("llama3")), wanted)


def test_results_as_a_table_and_as_json():
    results = _evaluate("tiny_choice", "tiny_text", limit=3, log_samples=True)
    text = table(results)
    header, _, first = text.splitlines()[:3]
    assert [word.strip() for word in header.split("|")[1:6]] == ["Tasks", "Version", "Filter", "n-shot", "Metric"]
    assert first.startswith("|tiny_choice")
    assert "|bits_per_byte" in text
    found = json.loads(as_json(results))
    assert found["n-samples"]["tiny_choice"] == {"original": 10, "effective": 3}
    assert len(found["samples"]["tiny_text"]) == 3
    assert found["config"]["max_length"] == 64


def test_examples_and_settings_of_generation_are_lm_eval_s():
    (one,), (two,) = (
        _evaluate("tiny_answer", limit=1, num_fewshot=count, gen_kwargs="max_gen_toks=2", log_samples=True)["samples"][
            "tiny_answer"
        ]
        for count in (0, 1)
    )
    first, second = (each["arguments"][0] for each in (one, two))
    assert second[0].endswith(first[0])
    assert len(second[0]) > len(first[0])
    assert len(one["resps"][0][0]) <= 2


def test_a_file_is_a_task_of_its_own():
    results = _evaluate(str(tasks_folder() / "tiny_choice.yaml"), include_path=None, limit=1)
    assert list(results["results"]) == ["tiny_choice"]


def test_names_that_do_not_exist(only_ours):
    with pytest.raises(ConfigError, match="--tasks nothing: no such task; `lm-eval ls tasks` lists"):
        _evaluate("tiny_choice", "nothing")
    with pytest.raises(ConfigError, match="--include-path nowhere: no such folder"):
        _evaluate("tiny_choice", include_path=Path("nowhere"))


def test_a_data_set_that_is_not_here_is_one_line(tmp_path):
    text = (tasks_folder() / "tiny_choice.yaml").read_text()
    (tmp_path / "gone.yaml").write_text(text.replace("docs.jsonl", "gone.jsonl").replace("tiny_choice", "gone"))
    (tmp_path / "far.yaml").write_text("task: far\ndataset_path: nobody/nothing\noutput_type: loglikelihood\n")
    for name in ("gone", "far"):
        with pytest.raises(DataError, match=f"--tasks {name}: .*; nothing is downloaded: use tasks of local") as error:
            _evaluate(name, include_path=tmp_path)
        assert "\n" not in str(error.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    check_package()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"--tasks needs lm-eval; pip install -e '\.\[lm-eval\]' in the checkout"):
        check_package()


def _main(monkeypatch: Any, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["lm-eval", "--model", "megads", "--model_args", *words])
    runpy.run_module("megads.evaluate.lm_eval", run_name="__main__", alter_sys=True)


def test_lm_eval_s_own_command_has_the_model(monkeypatch, only_ours, capsys, request):
    from megads.inference.generate import leave

    request.addfinalizer(leave)
    folder, tasks = model_folder("llama3"), ("--tasks", "tiny_choice", "--include_path", str(tasks_folder()))
    _main(monkeypatch, f"checkpoint={folder},max_length=32", *tasks, "--limit", "4")
    assert "|tiny_choice" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        _main(monkeypatch, "pretrained=a", *tasks)
    assert capsys.readouterr().err.splitlines()[-1].startswith("megads: model_args: pretrained: no such argument")
