"""What EVAL_TASKS says."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.settings.tasks import TASKS, TaskFile, parse_tasks
from megads.errors import ConfigError
from megads.evaluate import tasks


def test_tasks_are_those_of_megads_evaluate():
    assert set(TASKS) == set(tasks.TASKS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ", []),
        ("wikitext103:a/wiki.test.tokens", [("wikitext103", "a/wiki.test.tokens", "wikitext103")]),
        ("LAMBADA:x.jsonl, loss:b", [("lambada", "x.jsonl", "lambada"), ("loss", "b", "loss")]),
        ("loss:a/b.txt,loss:c.jsonl", [("loss", "a/b.txt", "loss.b"), ("loss", "c.jsonl", "loss.c")]),
        ("loss:a,b:c.txt", None),
        ("loss:a,b.txt", [("loss", "a,b.txt", "loss")]),
        ("loss:s3:1.txt", [("loss", "s3:1.txt", "loss")]),
    ],
)
def test_tasks(text, found):
    if found is None:
        with pytest.raises(ConfigError, match=r"no task is called b; the tasks are wikitext103, lambada, loss"):
            parse_tasks(text)
    else:
        assert parse_tasks(text) == [TaskFile(task, Path(path), label) for task, path, label in found]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file.txt", "EVAL_TASKS=file.txt: expected TASK:FILE"),
        ("file.txt,loss:a", "expected TASK:FILE"),
        ("race:a", "no task is called race"),
        ("loss:", "loss has no file; write loss:FILE"),
        ("loss:a.txt,loss:b/a.txt", "two files would be reported as loss.a"),
    ],
)
def test_what_is_not_understood_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_tasks(text)
