"""What a rank asks and makes before it trains, on a device that is not the CPU."""

from __future__ import annotations

import gc

import pytest
import torch

from megads.device import facts
from megads.device.vendor import vendor
from megads.errors import ConfigError
from megads.models.attention_backend import MATH, UNKNOWN, attention_forms, check_backends
from megads.models.build import build_model
from megads.parallel.tensor import placed
from megads.train.memory_check import check_memory
from tests.engine.plain import settings
from tests.ranks import groups_of
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device

SIZES = {"model.hidden_size": "128", "model.num_layers": "4", "train.dtype": "bf16"}


def _weights_arrive_in_their_own_bytes() -> None:
    run, device = settings({}, **SIZES), torch.device(DEVICE)
    gc.collect()
    before = torch.get_device_module(device).memory_allocated()  # what other tests left
    with counting() as found, placed(device, torch.bfloat16):
        module = build_model(run, groups_of())
        made = dict(module.named_parameters())
        module.to(device)
    count = sum(weight.numel() for weight in made.values())
    assert found.upload_bytes == 2 * count  # rounded on the host
    assert found.allocated - before == pytest.approx(2 * count, rel=0.02)
    assert found.peak - before == pytest.approx(2 * count, rel=0.02)
    assert all(weight is made[name] for name, weight in module.named_parameters())


def test_weights_arrive_in_their_own_bytes():
    run_on_device(1, _weights_arrive_in_their_own_bytes)


def _long_rows_are_refused() -> None:
    device = torch.device(DEVICE)
    run = settings({}, **{**SIZES, "model.seq_length": "2048"})
    with placed(device, torch.bfloat16):
        module = build_model(run, groups_of())
    (form,) = attention_forms(module, run, device)
    assert form.backend not in (MATH, UNKNOWN)
    check_backends([form], run, device)
    with pytest.raises(ConfigError, match=rf"takes its math kernel for causal attention .* on {device.type} in bf16"):
        check_backends(attention_forms(module, run, device, lambda call: MATH), run, device)


def test_math_over_long_rows_is_refused():
    run_on_device(1, _long_rows_are_refused)


def _memory_is_compared() -> None:
    row, device = vendor({}), torch.device(DEVICE)
    free, total = facts.memory(row, device)
    assert 0 < free <= total
    check_memory(settings({}, **SIZES), row, device, groups_of())
    large = settings({}, **{"model.hidden_size": "8192", "model.num_layers": "4096", "train.dtype": "bf16"})
    with pytest.raises(ConfigError, match=r"rank 0 on \S+ has .* GiB free on its device"):
        check_memory(large, row, device, groups_of())


def test_the_memory_of_the_device_is_compared():
    run_on_device(1, _memory_is_compared)
