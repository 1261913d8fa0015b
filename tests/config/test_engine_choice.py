"""Tests of megads.config.engine_choice: which engine runs a run, and why."""

from __future__ import annotations

import pytest

from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.settings.engine import EngineConfig


@pytest.mark.parametrize("kind", ["native", "deepspeed"])
def test_an_engine_that_was_named_is_taken_without_a_reason(kind: str) -> None:
    choice = choose(RunConfig(engine=EngineConfig.model_validate({"kind": kind})), 1)
    assert (choice.kind, choice.reason) == (kind, "")


def test_auto_says_why() -> None:
    choice = choose(RunConfig(), 1)
    assert choice.kind == "deepspeed"
    assert choice.reason
