"""Which loop a run trains in."""

from __future__ import annotations

from megads.config.schema import RunConfig
from megads.train.chat_loop import ChatLoop
from megads.train.loop import Loop
from megads.train.task_loop import TaskLoop


def loop_kind(run: RunConfig) -> type[Loop]:
    """Return the loop of chats, of tasks with classes, or of pretraining."""
    if run.finetune.is_chat:
        return ChatLoop
    return TaskLoop if run.finetune.task else Loop
