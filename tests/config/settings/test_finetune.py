"""Settings of ``megads finetune``: names of tasks as users write them, and files as a shell reads them."""

from __future__ import annotations

from typing import Any

import pytest

from megads.config.settings.finetune import FinetuneConfig
from megads.config.sources.resolve import resolve
from megads.data.tasks.task import paths_of
from megads.errors import ConfigError


def _found(*flags: tuple[str, str], **env: str) -> FinetuneConfig:
    return resolve(None, env=env, flags=flags, machine="generic").run.finetune


@pytest.mark.parametrize("word", ["MNLI", "mnli", "QQP", "qqp", "RACE", "race", "jsonl", "JSONL", "json"])
def test_a_task_is_known_by_the_words_for_it(word):
    wanted = "jsonl" if word.lower().startswith("json") else word.upper()
    assert _found(TASK=word).task == _found(("--task", word)).task == wanted


def test_another_task_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"TASK.*SQUAD.*MNLI, QQP, RACE.*jsonl"):
        _found(TASK="SQUAD")


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"TASK_EPOCHS": "0"}, "epochs", 0),
        ({"TASK_KEEP_LAST": "1"}, "keep_last", True),
        ({"TASK_TRAIN_DATA": "a 'b c'"}, "train_data", "a 'b c'"),
        ({"TASK_TEST_DATA": "t"}, "test_data", "t"),
        ({"TASK_CLASSES": "no 'so so'"}, "classes", "no 'so so'"),
        ({}, "epochs", 3),
        ({}, "choices", 1),
    ],
)
def test_a_variable_is_its_setting(given: dict[str, str], name: str, value: Any):
    assert getattr(_found(**given), name) == value


def test_words_are_those_of_a_shell():
    assert paths_of(_found(TASK_TRAIN_DATA="a 'b c' d").train_data) == ("a", "b c", "d")


@pytest.mark.parametrize("given", [{"TASK_EPOCHS": "-1"}, {"TASK_EPOCHS": "1.5"}, {"TASK_CHOICES": "0"}])
def test_numbers_that_are_none_are_refused(given: dict[str, str]):
    (name,) = given
    with pytest.raises(ConfigError, match=name):
        _found(**given)
