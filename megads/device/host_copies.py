"""Copies between host and device that the host does not wait for."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(host: Tensor, device: torch.device) -> Tensor:
    """Return ``host`` on ``device``; work that is queued there later finds it complete, and the host continues.

    From page-locked memory of torch's own pool, which is not given to others before the copy is done. On a CPU
    ``host`` itself.
    """
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)
