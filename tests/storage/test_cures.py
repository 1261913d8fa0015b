"""What takes long, or fails once, while a run goes on."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import torch

from megads.errors import CheckpointError
from megads.train import evaluate as evaluation
from megads.train import resume


def test_a_long_validation_says_how_far_it_is(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    caplog.set_level(logging.INFO, "megads")
    monkeypatch.setattr(evaluation, "FIRST_S", 0.0)
    engine: Any = SimpleNamespace(eval_losses=lambda batches: torch.tensor([[2.0, 1.0]]))
    found = evaluation.evaluate(engine, [[torch.zeros(1, 2)]] * 3, total=3)
    assert found is not None
    assert found.loss == 2.0
    assert caplog.messages == ["validation: 1 of 3, ETA 0s"]  # the next is due in half a minute


def test_a_checkpoint_is_read_once_more_before_it_is_called_damaged(monkeypatch):
    answers = [CheckpointError("a bit"), None]

    def read(*given: object) -> None:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(resume, "_read", read)
    training: Any = SimpleNamespace(groups=None, device=None)
    found: Any = SimpleNamespace(path="x")
    assert resume._try_twice(training, found, None) == ""
    answers[:] = [CheckpointError("a bit"), CheckpointError("a bit still")]
    assert resume._try_twice(training, found, None) == "a bit still"
