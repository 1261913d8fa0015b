"""What only measurements ask of a device: waits of the host, and memory that the allocator keeps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megads.device.vendor import Vendor

_WAITS = "synchronizing"
"""In torch's warning of an operation that makes the host wait for the device."""


@contextmanager
def host_waits(row: Vendor) -> Iterator[list[str] | None]:
    """Yield a list that gets ``file:line`` of every operation of the block that makes the host wait for the device.

    Yields None where torch cannot tell: on a CPU, which has no queue, and on Intel's devices.
    """
    if row.device_type != "cuda":
        yield None
        return
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found += [f"{each.filename}:{each.lineno}" for each in caught if _WAITS in str(each.message)]


def free_cached(row: Vendor) -> None:
    """Give memory that torch's allocator keeps back to the device."""
    if row.device_type != "cpu":
        row.module.empty_cache()
