"""What a loop calls: the replica check comes before the guard's question, and overflows of fp16 are no event."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.checkpoint.resume.progress import Progress
from megads.engine.base import StepResult
from megads.train.numbers.watch import NumberWatch


def watch(calls: list[str], *, due: bool = True, falls: bool = False) -> Any:
    made = NumberWatch.__new__(NumberWatch)
    made.guard = SimpleNamespace(scale_falls=lambda result: falls)  # type: ignore[assignment]
    made.replicas = SimpleNamespace(is_due=lambda step: due, look=lambda step: calls.append(f"replicas {step}"))  # type: ignore[assignment]
    made.nonfinite = SimpleNamespace(wants=True, look=lambda *_: calls.append("nonfinite"))  # type: ignore[assignment]
    return made


def test_copies_are_compared_before_the_guard_is_asked():
    calls: list[str] = []
    asked = watch(calls).accepting(Progress(4), lambda loss: bool(calls.append("guard")))
    assert asked(1.0) is False
    assert calls == ["replicas 5", "guard"]
    assert watch(calls).accepting(Progress(4), None)(1.0) is True
    assert watch(calls, due=False).accepting(Progress(4), None) is None


@pytest.mark.parametrize(
    ("loss", "skipped", "rejected", "falls", "is_event"),
    [
        (2.0, False, False, False, False),
        (2.0, True, False, False, True),  # a gradient
        (2.0, True, False, True, False),  # the loss scale halves
        (2.0, True, True, False, False),  # a spike
        (math.nan, True, True, False, True),  # ON_NAN=rollback
        (math.inf, True, False, True, True),
        (math.nan, False, False, False, False),  # the weights have changed
    ],
)
def test_what_an_event_is(loss, skipped, rejected, falls, is_event):
    calls: list[str] = []
    result = StepResult(torch.tensor(loss), 1.0, skipped, 1.0, rejected)
    rates = SimpleNamespace(lr=0.1)
    watch(calls, falls=falls).step_done(Progress(4), [], rates, result)
    assert calls == (["nonfinite"] if is_event else [])
