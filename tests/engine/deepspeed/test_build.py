"""Without ENGINE=native, the engine is DeepSpeed's."""

from __future__ import annotations

import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.engine.build import make_engine
from tests.engine.plain import settings
from tests.ranks import run_ranks


def _is_deepspeeds() -> None:
    from megads.engine.deepspeed.engine import DeepSpeedEngine

    engine = make_engine(settings({}, **{"engine.kind": "deepspeed"}), Groups(Grid(), 0), torch.device("cpu"))
    assert type(engine) is DeepSpeedEngine


def test_the_engine_is_deepspeeds():
    run_ranks(1, _is_deepspeeds)
