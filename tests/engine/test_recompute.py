"""What is computed again follows from the settings, for any engine that uses torch's checkpoints."""

from __future__ import annotations

import torch

from megads.engine.recompute import recompute_of
from megads.parallel.recompute import torch_checkpoint
from tests.engine.plain import settings


def test_the_settings_are_the_plan():
    run = settings(
        {},
        **{
            "recompute.granularity": "full",
            "recompute.method": "block",
            "recompute.num_layers": "2",
            "recompute.loss_chunk": "8",
        },
    )
    plan = recompute_of(run, torch.device("cpu"))
    assert (plan.granularity, plan.method, plan.num_layers, plan.loss_chunk) == ("full", "block", 2, 8)
    assert plan.checkpoint is torch_checkpoint


def test_inputs_stay_on_a_cpu():
    run = settings({}, **{"recompute.granularity": "full", "recompute.cpu_checkpointing": "1"})
    assert recompute_of(run, torch.device("cpu")).host is None
