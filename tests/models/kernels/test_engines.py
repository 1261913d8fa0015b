"""Compiled layers in engines: what gathers weights, reduces gradients and recomputes layers stays around them."""

from __future__ import annotations

import pytest
import torch

from megads.models.kernels.compiled import compile_layers
from tests.engine.plain import make_engine, on, settings, train
from tests.ranks import groups_of, run_ranks

RECOMPUTED = {"recompute.granularity": "full"}


def _steps_are_those_of_eager(grid: dict[str, int], changes: dict[str, str]) -> None:
    run, groups = settings(grid, **changes), groups_of(**grid)
    eager = train(make_engine(run, groups), run, groups, last=2)
    engine = make_engine(run, groups)
    said: list[str] = []
    torch._dynamo.reset()
    compile_layers(getattr(engine, "chunks", None) or [engine.module], said.append, backend="aot_eager")
    compiled = train(engine, run, groups, last=2)
    assert said
    assert all(line.startswith("compiled ") for line in said), said
    for wanted, ours in zip(eager, compiled, strict=True):
        assert float(ours.loss) == pytest.approx(float(wanted.loss), rel=1e-6)
        assert float(ours.grad_norm) == pytest.approx(float(wanted.grad_norm), rel=1e-5)


@pytest.mark.parametrize(
    ("grid", "changes"),
    [
        ({"data": 2}, on("native", {"parallel.zero_stage": "3", **RECOMPUTED})),
        ({"tensor": 2}, on("native", {"parallel.zero_stage": "1", "parallel.scatter_norms": "1"})),
        ({"data": 2}, on("deepspeed", {"parallel.zero_stage": "2"})),
        ({"pipe": 2}, on("deepspeed", {"parallel.zero_stage": "1", **RECOMPUTED})),
    ],
)
def test_steps_are_those_of_eager(grid, changes):
    run_ranks(2, _steps_are_those_of_eager, grid, changes, timeout_s=300)
