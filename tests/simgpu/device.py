"""Make the simulated device of this process: torch's, DeepSpeed's and megads's."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from megads.device import vendor
from tests.ranks import run_ranks
from tests.simgpu.build import build, missing
from tests.simgpu.module import NAME, install

ROW = vendor.Vendor("simulated", NAME, ("sim",), lambda: True)
DEVICE = f"{NAME}:0"  # torch knows the name once the device is made


def start(devices: int = 1) -> dict[str, Any]:
    """Have this process train on a device; return backend and device of a process group.

    Once per process, and before a process group is made.
    """
    import torch

    install(str(build()), devices)
    from tests.simgpu import accelerator, collectives

    importlib.import_module("deepspeed")
    accelerator.use_simulated()
    collectives.register()
    vendor.register(ROW)
    return {"backend": "sim", "device_id": torch.device(DEVICE)}


def have_device() -> None:
    """Build the device, or skip the test where that is not possible; in CI the test fails."""
    why = missing()
    if why and not os.environ.get("MEGADS_REQUIRE_ALL"):
        pytest.skip(why)
    assert not why, why
    build()


def run_on_device(size: int, check: Callable[..., None], *args: Any, timeout_s: float = 120) -> None:
    """Call ``check(*args)`` on ``size`` ranks with a simulated device each; see :func:`have_device`."""
    have_device()  # here: no rank waits for it
    run_ranks(size, check, *args, timeout_s=timeout_s, start=start)
