"""The real engine on the simulated device gives the CPU's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import CLIP, batches, plain_loop, rate, settings
from tests.ranks import groups_of
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device


def train(engine: Any, run: Any, groups: Any, steps: range) -> list[Any]:
    """Return the results of ``steps``; micro-batches come from the host."""
    return [
        engine.train_step([part.to(DEVICE) for part in batches(run, step, groups.data_rank)], rate(step))
        for step in steps
    ]


def _trains_like_the_cpu(zero: str) -> None:
    import torch

    from megads.device.vendor import vendor
    from megads.engine.build import make_engine

    assert vendor({}).device_type == "gpu"
    run = settings({}, **{"parallel.zero_stage": zero})
    losses, norms, _ = plain_loop(settings({}))
    engine = make_engine(run, groups_of(), torch.device(DEVICE))
    with counting() as found:
        results = train(engine, run, groups_of(), range(len(losses)))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-6)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-5)
    assert min(norms) > CLIP
    assert found.kernels > 1000
    assert {tensor.device.type for tensor in engine.module.parameters()} == {"gpu"}


@pytest.mark.parametrize("zero", ["0", "1", "2"])
def test_one_rank_trains_like_a_plain_loop_on_the_cpu(zero):
    run_on_device(1, _trains_like_the_cpu, zero)
