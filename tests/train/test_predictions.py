"""Predictions of a file as JSON lines, under names that differ."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from megads.data.tasks.examples import Example, TaskFile
from megads.data.tasks.task import Task
from megads.errors import DataError
from megads.train.predictions import prediction_files, prediction_lines, write_predictions
from megads.train.task_scores import Answer

EXAMPLES = [Example((("a", None),), 0), Example((("b", None),), 1)]
ANSWERS = [Answer(0.1, 1, 0.75), Answer(0.2, 1, 1.0 / 3)]


def _samples(path: str = "x.jsonl", *, has_labels: bool = True) -> Any:
    return SimpleNamespace(file=TaskFile(path, EXAMPLES, has_labels=has_labels))


def _rows(task: Task, **more: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in prediction_lines(task, _samples(**more), ANSWERS)]


def test_every_example_has_a_line_with_names_of_classes_and_numbers_of_choices():
    classes, choices = Task("jsonl", (), (), ("no", "yes"), 1), Task("RACE", (), (), (), 4)
    assert _rows(classes) == [
        {"index": 0, "predicted": "yes", "probability": 0.75, "label": "no"},
        {"index": 1, "predicted": "yes", "probability": 0.333333, "label": "yes"},
    ]
    assert _rows(choices, has_labels=False) == [
        {"index": 0, "predicted": 1, "probability": 0.75},
        {"index": 1, "predicted": 1, "probability": 0.333333},
    ]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/test.tsv"], ["test.tsv.jsonl"]),
        (["a/t.jsonl", "b/t.jsonl"], ["a-t.jsonl", "b-t.jsonl"]),
        (["../x/t", "y/x/t", "x-t"], ["x-t.jsonl", "y-x-t.jsonl", "x-t.2.jsonl"]),
    ],
)
def test_names_of_files_differ_and_stay_in_the_folder(tmp_path, paths, names):
    found = prediction_files(tmp_path, [_samples(path) for path in paths])
    assert {path.parent for path in found} == {tmp_path / "predictions"}
    assert [path.name for path in found] == names


def test_names_that_a_slash_alone_tells_apart_are_numbered(tmp_path):
    found = prediction_files(tmp_path, [_samples(path) for path in ("x/a/t", "y/a/t", "x/a-t")])
    assert len({path.name for path in found}) == 3


def test_a_file_appears_whole_and_replaces_the_one_before(tmp_path):
    path, task = tmp_path / "predictions" / "x.jsonl", Task("jsonl", (), (), ("no", "yes"), 1)
    write_predictions(path, task, _samples(), ANSWERS)
    write_predictions(path, task, _samples(), ANSWERS)
    assert len(path.read_text().splitlines()) == 2
    assert [each.name for each in path.parent.iterdir()] == ["x.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=f"^{tmp_path}/file/x.jsonl: cannot be written: .*; set RUN_DIR$"):
        write_predictions(tmp_path / "file" / "x.jsonl", task, _samples(), ANSWERS)
