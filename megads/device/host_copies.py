"""Copies between host and device that the host does not wait for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_BYTES = 1 << 28
"""Page-locked memory that is taken at a time: torch's pool takes the next power of two."""


def upload(host: Tensor, device: torch.device) -> Tensor:
    """Return ``host`` on ``device``; work that is queued there later finds it complete, and the host continues.

    From page-locked memory of torch's own pool, which is not given to others before the copy is done. On a CPU
    ``host`` itself.
    """
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


class HostMemory:
    """Host memory that devices write to while the host continues: page-locked. On a CPU it is plain memory."""

    def __init__(self) -> None:
        self._block: Tensor | None = None
        self._used = 0
        self.bytes = 0  # taken, all together
        self.problem = ""  # why it is not page-locked: copies to it then wait

    def like(self, flat: Tensor) -> Tensor:
        """Return uninitialised host memory for a copy of ``flat``, ``[n]``."""
        size = flat.nbytes
        if flat.device.type == "cpu" or not self._has_room(size):
            self.bytes += size
            return torch.empty_like(flat, device="cpu")
        assert self._block is not None
        part = self._block[self._used : self._used + size].view(flat.dtype)
        self._used += -(-size // 512) * 512  # aligned
        return part

    def _has_room(self, size: int) -> bool:
        """Return whether the block has ``size`` bytes left, or a new one was taken."""
        if self._block is not None and self._used + size <= self._block.nbytes:
            return True
        if self.problem:
            return False
        try:
            self._block = torch.empty(max(BLOCK_BYTES, size), dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # the limit of locked memory (ulimit -l), or none left
            self.problem = str(error).partition("\n")[0]
            return False
        self.bytes += self._block.nbytes
        self._used = 0
        return True


def copies_done(device: torch.device) -> Callable[[], None]:
    """Return what waits, in any thread, until the copies that were queued so far are complete."""
    if device.type == "cpu":
        return lambda: None
    event = torch.get_device_module(device.type).Event()
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait
