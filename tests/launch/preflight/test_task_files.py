"""Files of EVAL_TASKS that cannot be scored are found before a rank is started."""

from __future__ import annotations

import json

import pytest

from megads.errors import DataError
from megads.launch.preflight.task_files import check_task_files
from tests.engine.plain import settings


def _check(tasks: str) -> None:
    check_task_files(settings({}, **{"tasks.files": tasks}))


def test_files_that_can_be_scored(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a b"}) + "\n\n")
    (tmp_path / "b.json").write_text("a text of wiki")
    _check("")
    _check(f"lambada:{tmp_path}/a.jsonl,loss:{tmp_path}/a.jsonl,wikitext103:{tmp_path}/b.json")


@pytest.mark.parametrize(
    ("task", "content", "words"),
    [
        ("loss", None, "a.jsonl: No such file or directory"),
        ("lambada", b"", "a.jsonl: has no text"),
        ("lambada", b"{", "a.jsonl:1: is not JSON"),
        ("loss", b'{"text": "a b"}\n{"content": "a"}', 'a.jsonl:2: expected an object with "text"'),
        ("loss", b"[1]", 'a.jsonl:1: expected an object with "text"'),
        ("loss", b'{"text": "\\ud800 a"}', "a.jsonl:1: its text has half of a surrogate pair"),
        ("wikitext103", b" \n", "a.jsonl: is too short to evaluate"),
        ("wikitext103", b"a \xff b", r"a.jsonl: is not UTF-8 text \(byte 2 is 0xff\); convert it"),
    ],
)
def test_files_that_cannot(tmp_path, task, content, words):
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=words):
        _check(f"{task}:{tmp_path}/a.jsonl")
