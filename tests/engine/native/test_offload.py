"""Gradients go to the masters' memory, and masters come back to the weights."""

from __future__ import annotations

import pytest
import torch

from megads.engine.native.offload import Offload
from tests.engine.native.test_units import made


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_go_and_weights_come_back(dtype):
    changes = {"deepspeed.offload_optimizer": "cpu", "parallel.zero_stage": "1", "train.dtype": dtype}
    _, units = made(1, {"data": 2}, **changes)
    offload = Offload(units)
    assert offload.is_on
    for unit in units:
        unit.reduced.uniform_()
        assert torch.equal(unit.masters, unit.part.float())
        unit.masters.uniform_()
    offload.gradients_to_host()
    offload.weights_to_device()
    for unit in units:
        assert unit.gradients.data_ptr() != unit.reduced.data_ptr()
        assert torch.equal(unit.gradients, unit.reduced)
        assert torch.equal(unit.weights[unit.owned.start : unit.owned.stop], unit.masters.to(unit.weights.dtype))
        assert all(run.weight.grad is not None for run in unit.runs)


def test_without_offload_there_is_nothing_to_do():
    _, units = made(0, {})
    assert not Offload(units).is_on
