"""What `megads evaluate` refuses before it loads a model, and where it writes its numbers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from megads.cli.evaluate import TaskCommand, _files, _write, evaluate
from megads.config.settings.tasks import TaskFile
from megads.errors import ConfigError, MegadsError
from tests.data.factory import write_dataset


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n')
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a.jsonl").write_text('{"text": "a b"}\n')
    write_dataset(tmp_path, [5, 5], name="tokens")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "pass the model once"),
        ("run", "pass --data FILE with a text, or --tasks NAME,NAME"),
        ("run --data a.jsonl --task loss:a.jsonl", "--task loss:a.jsonl and --data: pass the files with one"),
        ("run --data a.jsonl --tasks sst2", "pass --data FILE with a text, or --tasks"),
        ("run --tasks sst2 --sp 2", "--sp 2: tasks of lm-eval run with --tp, --pp and --dp"),
        ("run --task x,loss:a.jsonl", "--task x,loss:a.jsonl: expected TASK:FILE"),
        ("run --task race --data a.jsonl", "--task race: no such task; the tasks are wikitext103, lambada, loss"),
        ("run --data nothing.txt", "nothing.txt: No such file or directory"),
        ("run --data a.jsonl --part valid", "--part valid needs the shares of train, valid and test"),
        ("run --data a.jsonl --part valid --split 8,1,1", "a.jsonl is not a token file"),
        ("run --data tokens --part valid --split 8,x", "SPLIT=8,x: expected the shares"),
        ("run --data a.jsonl --json no/where", "--json no/where: its folder does not exist"),
        ("run --data a.jsonl --data b/a.jsonl --json b", "--json b: two files would be written as loss.a.json"),
        ("run --data a.jsonl --fp16 --bf16", "two values, fp16 and bf16"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(words, message):
    done = CliRunner().invoke(evaluate, words.split())
    assert isinstance(done.exception, MegadsError)
    assert message in str(done.exception)


def test_valid_data_takes_several_files_in_a_line_of_megatron():
    def given(line: str) -> tuple[object, object]:
        ctx = evaluate.make_context("evaluate", line.split())
        return ctx.params["paths"], ctx.params["source"] or ctx.params["load"]

    assert isinstance(evaluate, TaskCommand)
    assert given("--valid-data a b c --load run --task LAMBADA") == (("a", "b", "c"), "run")
    assert given("--load run --valid-data a --data b") == (("a", "b"), "run")
    assert given("--data a run") == (("a",), "run")
    assert given("--valid-data a run") == (("a",), "run")


def test_a_folder_gets_a_file_per_task_and_a_file_a_line(folder):
    files = _files({"task": "loss:a.jsonl,lambada:b/a.jsonl", "paths": ()})
    lines: list[str] = []
    for place, file in enumerate(files):
        lines.append(json.dumps({"loss": place}) + "\n")
        _write("b", file, lines)
        _write("all.jsonl", file, lines)
    wanted = [{"loss": 0}, {"loss": 1}]
    assert [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()] == wanted
    assert [json.loads((folder / f"b/{name}.json").read_text()) for name in ("loss", "lambada")] == wanted


def test_what_cannot_be_written_is_one_line(folder):
    (folder / "b/loss.json").mkdir()
    with pytest.raises(ConfigError, match=r"b/loss.json: Is a directory; pass another file"):
        _write("b", TaskFile("loss", folder, "loss"), ["{}\n"])
