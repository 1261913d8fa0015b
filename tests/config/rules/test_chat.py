"""What chats cannot be learnt with."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.advice import check

PACKED = {"RESET_ATTENTION_MASK": "1", "RESET_POSITION_IDS": "1"}
OFF = {"RESET_ATTENTION_MASK": "", "RESET_POSITION_IDS": ""}
CHAT = {"TASK": "chat", "CHAT_ROWS": "5", "TRAIN_ITERS": "10"}


def _check(**env: str) -> None:
    asked = resolve("tiny", env={**CHAT, **env}, machine="generic")
    check(derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=500).run, 1)


def test_packed_and_plain_chats_are_learnt_and_tasks_scored_meanwhile():
    _check(**PACKED)
    _check(PACK_CHATS="0")
    _check(**PACKED, EVAL_TASKS="lambada:x")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CHAT_ROWS": "0"}, "TASK=chat is read by megads finetune only"),
        (
            {"MODEL_FAMILY": "bert"},
            "TASK=chat: a model of MODEL_FAMILY=bert does not predict a text from its beginning",
        ),
        ({"MODEL_FAMILY": "t5", **OFF}, "TASK=chat: a model of MODEL_FAMILY=t5"),
        (
            {"TASK_TEST_DATA": "x"},
            "TASK_TEST_DATA=x: chats are scored by --valid-data, and answered by megads generate",
        ),
        ({"TASK_CLASSES": "a b"}, "TASK_CLASSES=a b: TASK=chat has no classes"),
        ({"EOD_MASK_LOSS": "1"}, "EOD_MASK_LOSS=1: of chats only answers count"),
        ({"RESET_ATTENTION_MASK": "0"}, "follow from PACK_CHATS; leave them unset"),
        ({"PACK_CHATS": "0"}, "follow from PACK_CHATS; leave them unset"),
        ({"NUM_CLASSES": "2"}, "NUM_CLASSES=2 is the head of a task with classes"),
    ],
)
def test_what_does_not_go_with_chats_is_refused(env, words):
    with pytest.raises(ConfigError, match=words) as caught:
        _check(**{**PACKED, **env})
    assert "\n" not in str(caught.value)
