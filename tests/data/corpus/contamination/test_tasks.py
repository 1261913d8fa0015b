"""Texts of task files."""

from __future__ import annotations

import json

import pytest

from megads.data.corpus.contamination.tasks import KEYS, task_texts
from megads.errors import DataError

ROWS = {
    "lambada": ({"text": "a"}, ["a"]),
    "squad": ({"question": "a", "context": "b"}, ["a"]),
    "natural_questions": ({"question": {"text": "a"}}, ["a"]),
    "triviaqa": ({"question": "a"}, ["a"]),
    "webqa": ({"question": "a"}, ["a"]),
    "race": ({"question": "a", "article": "b"}, ["a"]),
    "drop": ({"question": "a", "passage": "b"}, ["a"]),
    "coqa": ({"questions": ["a", "b"]}, ["a", "b"]),
    "piqa": ({"goal": "a", "sol1": "b"}, ["a"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_rows_of_every_task_as_json_lines_and_as_a_list(name, tmp_path):
    row, wanted = ROWS[name]
    path = tmp_path / "task.json"
    for text in (f"{json.dumps(row)}\n\n{json.dumps(row)}\n", json.dumps([row, row], indent=1), json.dumps([row, row])):
        path.write_text(text)
        assert list(task_texts(name, str(path))) == wanted * 2
    path.write_text(json.dumps(row))
    assert list(task_texts(name, str(path))) == wanted


@pytest.mark.parametrize("indent", [None, 2])
def test_the_files_of_squad_and_coqa(tmp_path, indent):
    path = tmp_path / "dev.json"
    paragraphs = [{"context": "c", "qas": [{"question": "a", "id": 1}, {"question": "b", "id": 2}]}]
    path.write_text(json.dumps({"version": "v2", "data": [{"title": "t", "paragraphs": paragraphs}]}, indent=indent))
    assert list(task_texts("squad", str(path))) == ["a", "b"]
    path.write_text(json.dumps({"data": [{"questions": [{"input_text": "a"}, {"input_text": "b"}]}]}, indent=indent))
    assert list(task_texts("coqa", str(path))) == ["a", "b"]


def test_any_other_task_by_its_key(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a": {"b": "x"}}\n')
    assert list(task_texts("mine", str(path), "a.b")) == ["x"]
    path.write_text('{"text": "x"}\n')
    assert list(task_texts("mine", str(path))) == ["x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text of task squad; expected JSON lines with key 'question'"),
        (b'{"question": "a"}\nbroken\n{"question": "a"}\n', ":2: task squad: is not JSON"),
        (b'{"answer": "a"}\n', ":1: has no key 'question'; it has 'answer'; pass --task-key"),
        (b'{"question": 1}\n', ":1: 'question' is not a text or a list of texts; pass --task-key"),
        (b'[{"question": "a"}, 7]', ": entry 2: has no key 'question'; pass --task-key"),
        (b"\xff\n\xff\n\xff\n", ":1: task squad: is not JSON"),
        (b'{"question": "a"}\n' + b"[" * 100_000, ":2: task squad: is nested deeper than"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, message):
    path = tmp_path / "squad.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(task_texts("squad", str(path)))
    assert str(caught.value).startswith(f"{path}{message}" if message[0] == ":" else f"{path}: {message}")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="task squad: cannot be read: no such file"):
        list(task_texts("squad", str(tmp_path / "none.json")))
