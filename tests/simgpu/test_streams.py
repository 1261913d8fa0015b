"""Races are errors on the simulated device, although nothing runs in parallel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simgpu.device import DEVICE, run_on_device


def _reading(wait: bool) -> None:
    import torch

    gpu = torch.get_device_module("gpu")
    side = gpu.Stream()
    x = torch.ones(8, device=DEVICE)
    if wait:
        side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        y = x * 2
    if wait:
        event = gpu.Event()
        event.record(side)
        event.synchronize()  # the host, and whatever it asks for next
    assert (y + 1).sum().item() == 24


def _freeing(wait: bool) -> None:
    import torch

    gpu = torch.get_device_module("gpu")
    side = gpu.Stream()
    x = torch.ones(8, device=DEVICE)
    side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        total = x.sum()
    if wait:
        x.record_stream(side)
    del x
    torch.zeros(100, device=DEVICE)  # CUDA's allocator may give it the same memory
    gpu.synchronize()
    assert total.item() == 8


def _downloading(wait: bool) -> None:
    import torch

    gpu = torch.get_device_module("gpu")
    host = torch.empty(8, pin_memory=True)
    host.copy_(torch.ones(8, device=DEVICE), non_blocking=True)
    if wait:
        gpu.current_stream().synchronize()
    if host.tolist() != [1] * 8:
        raise RuntimeError("race: the host reads what is not there")


def _uploading(wait: bool) -> None:
    import torch

    gpu = torch.get_device_module("gpu")
    host = torch.ones(8).pin_memory()
    x = host.to(DEVICE, non_blocking=True)
    if wait:
        gpu.synchronize()
    host.zero_()
    try:
        gpu.synchronize()
    except RuntimeError as error:
        raise RuntimeError(f"race: {error}") from error
    assert x.sum().item() == 8


def _sending(wait: bool) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(8, device=DEVICE)
    work = dist.all_reduce(x, async_op=True)
    if wait:
        work.wait()
    y = x + 1
    work.wait()
    assert y.sum().item() == 8 + 8 * dist.get_world_size()


def _is_seen(case: Callable[[bool], None]) -> None:
    case(True)
    with pytest.raises(RuntimeError, match="race"):
        case(False)
    import torch

    torch.get_device_module("gpu").synchronize()


@pytest.mark.parametrize("case", [_reading, _freeing, _downloading, _uploading, _sending])
def test_a_race_is_an_error_and_order_is_none(case):
    run_on_device(1, _is_seen, case)
