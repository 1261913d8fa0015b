"""The simulated device itself: what it refuses, what it counts, what it computes."""

from __future__ import annotations

import os
import signal

import pytest

from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device


def _refuses_mixed_devices() -> None:
    import torch

    here, there = torch.ones(3, device=DEVICE), torch.ones(3)
    for mix in (
        lambda: here + there,
        lambda: here.add_(there),
        lambda: torch.stack([here, there]),
        lambda: there @ here,
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mix()
    assert (here * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number is an argument
    with pytest.raises(TypeError, match="gpu"):
        here.numpy()


def test_operands_of_two_devices_are_refused():
    run_on_device(1, _refuses_mixed_devices)


def _counts() -> None:
    import torch

    module = torch.get_device_module("gpu")
    start = module.memory_allocated()
    with counting() as found:
        a = torch.zeros(1000, device=DEVICE)
        b = a + 1
        del a
        host = b.cpu()
    assert (found.kernels, found.names) == (2, {"aten::add": 1, "aten::zero_": 1})
    assert (found.uploads, found.downloads, found.download_bytes) == (0, 1, 4000)
    assert (found.allocated - start, found.peak - start) == (4000, 8000)
    assert (found.kinds(), host.sum().item()) == ({"download": 1}, 1000)
    pinned = torch.ones(8).pin_memory()
    with counting() as found:
        c = pinned.to(DEVICE, non_blocking=True)
        torch.ones(8).to(DEVICE, non_blocking=True)
        torch.tensor([1.0, 2.0], device=DEVICE)
        pinned.copy_(c, non_blocking=True)
        module.synchronize()
        c.sum().item()
        c.nonzero()
        c[c > 2]
    assert found.kinds() == {
        **{"upload_pinned": 1, "upload_pageable": 1, "upload": 1, "download_pinned": 1},
        **{"synchronize": 1, "item": 1, "nonzero": 2},
    }
    assert len(found.waits) == 5
    assert all(event.where.startswith("tests/simgpu/test_device.py:") for event in found.waits), found.waits


def test_kernels_copies_waits_and_memory_are_counted():
    run_on_device(1, _counts)


def _is_not_readable(value: str) -> None:
    import ctypes

    import torch

    fresh = torch.empty(7, device=DEVICE)
    assert fresh.isnan().all().item()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(fresh.data_ptr(), 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_the_host_cannot_read_its_memory_and_fresh_memory_is_nan():
    run_on_device(1, _is_not_readable, "")


def _computes_as_the_cpu() -> None:
    import torch
    from torch.nn import functional as F

    module = torch.get_device_module("gpu")

    def results(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(5)
        x = torch.randn(2, 4, 8, 16).to(device, dtype).requires_grad_()
        (module.manual_seed if device == DEVICE else torch.manual_seed)(7)
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        y = F.silu(F.dropout(F.rms_norm(y, (16,)), 0.3)).masked_fill(y > 1, 0)
        y = torch.cat([y[:, 1:], y[:, :1].transpose(-1, -2).reshape(2, 1, 8, 16)], 1)
        torch.logsumexp(y.flatten(1), 1).sum().backward()
        out = torch.empty(0, device=device, dtype=dtype)
        torch.mul(y.detach(), 2, out=out)  # an output that grows
        return [each.cpu() for each in (y.detach(), x.grad, out, torch.sort(y.detach().flatten())[1])]

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for ours, theirs in zip(results(DEVICE, dtype), results("cpu", dtype), strict=True):
            assert torch.equal(ours, theirs), dtype


def _draws_again() -> None:
    import torch

    module = torch.get_device_module("gpu")
    state = module.get_rng_state()
    first = torch.rand(9, device=DEVICE).tolist()
    host = torch.rand(3).tolist()
    assert torch.rand(9, device=DEVICE).tolist() != first
    module.set_rng_state(state)
    assert torch.rand(9, device=DEVICE).tolist() == first
    torch.manual_seed(0)  # seeds both, which draw apart from each other
    assert torch.rand(3).tolist() == host
    own = torch.Generator(DEVICE).manual_seed(3)
    drawn = torch.rand(4, device=DEVICE, generator=own).tolist()
    assert drawn == torch.rand(4, generator=torch.Generator().manual_seed(3)).tolist()


def test_its_random_numbers_have_a_state_of_their_own():
    run_on_device(1, _draws_again)


def test_it_computes_what_the_cpu_does_and_draws_the_same_numbers():
    run_on_device(1, _computes_as_the_cpu)
