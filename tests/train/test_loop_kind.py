"""Which loop a run trains in."""

from __future__ import annotations

import pytest

from megads.train.chat_loop import ChatLoop
from megads.train.loop import Loop
from megads.train.loop_kind import loop_kind
from megads.train.task_loop import TaskLoop
from tests.parity.layouts import Layout


@pytest.mark.parametrize(("task", "kind"), [("", Loop), ("chat", ChatLoop), ("RACE", TaskLoop)])
def test_the_task_decides(task, kind):
    assert loop_kind(Layout().run(**{"finetune.task": task})) is kind
