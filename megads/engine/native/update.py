"""From reduced gradients to new weights: norm, clip, loss scale, update, cast.

The division by the ranks and by the loss scale and the clipping are one factor. Fused optimizers take it with the
gradients, and skip a step whose gradients are not finite, on the device; others get gradients that were
multiplied by it, after the host has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.device.host_copies import copies_done
from megads.engine.native.offload import Offload
from megads.engine.native.units import Unit

AT_ONCE = 1 << 20
"""Elements whose squares are summed in float32; their sums are added in float64."""

SMALL = 1e-6
"""Added to the norm before the limit is divided by it, as ``torch.nn.utils.clip_grad_norm_`` does."""


class Updater:
    """Updates ``units`` by ``optimizer``.

    Attributes:
        waits: whether the host has to know that gradients are finite before the update.
    """

    def __init__(self, units: Sequence[Unit], optimizer: torch.optim.Optimizer, groups: Groups, device: torch.device):
        self.units, self.optimizer, self.device = units, optimizer, device
        self.offload = Offload(units)
        # Every rank of data x seq has all of them under ZeRO 0; the sum is over all ranks.
        self.copies = groups.data_seq_size if any(len(unit.owned) == unit.numel for unit in units) else 1
        self.counted = [part for unit in units for part in _counted(unit)]
        self.is_fused = bool(optimizer.param_groups) and all(group.get("fused") for group in optimizer.param_groups)
        self.waits = device.type == "cpu" or not self.is_fused or self.offload.is_on

    @torch.no_grad()
    def squares(self) -> Tensor:
        """Return the squares of the gradients that this rank counts, [] float64; over all ranks each counts once."""
        if not self.counted:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack(torch._foreach_norm(self.counted)).double().square().sum() / self.copies

    def begin(self) -> None:
        """Send gradients to where the optimizer is."""
        self.offload.gradients_to_host()

    @torch.no_grad()
    def step(self, norm: Tensor, divisor: float, limit: float) -> None:
        """Update the masters.

        Args:
            norm: [] float64 of the gradients as they are; where the host has not :attr:`waits`, it may be infinite, and
                nothing changes then. On the host if the host waited, else on the device.
            divisor: of the gradients.
            limit: of the norm of what was divided; 0: none.
        """
        inverse = (norm + SMALL * divisor).div(limit).clamp(min=divisor) if limit else torch.full_like(norm, divisor)
        if not self.is_fused:
            factor = 1 / float(inverse)
            if factor != 1:
                torch._foreach_mul_([unit.gradients for unit in self.units], factor)
            self.optimizer.step()
            return
        optimizer: Any = self.optimizer
        if not (self.waits and float(inverse) == 1):
            optimizer.grad_scale = inverse.float()
        if not self.waits:
            optimizer.found_inf = norm.isfinite().logical_not().float()
        try:
            optimizer.step()
        finally:
            vars(optimizer).pop("grad_scale", None)
            vars(optimizer).pop("found_inf", None)

    @torch.no_grad()
    def cast(self) -> None:
        """Set what this rank sends to the masters."""
        self.offload.weights_to_device()
        apart = [unit for unit in self.units if unit.masters is not unit.part and not self.offload.is_on]
        if apart:
            torch._foreach_copy_([unit.part for unit in apart], [unit.masters for unit in apart])


def _counted(unit: Unit) -> list[Tensor]:
    """Return the reduced gradients of a unit that this tensor-parallel rank counts, in few pieces."""
    spans: list[list[int]] = []
    before = False
    for place in unit.places:
        first, last = max(place.first, unit.owned.start), min(place.last, unit.owned.stop)
        if place.counts and last > first:
            if spans and before:
                spans[-1][1] = last  # what is between is zeros
            else:
                spans.append([first, last])
        before = place.counts
    start = unit.owned.start
    return [part for first, last in spans for part in unit.reduced[first - start : last - start].split(AT_ONCE)]


def read_later(numbers: Tensor) -> Callable[[], list[float]]:
    """Begin to copy ``numbers`` to the host; the function waits for them and returns them."""
    if numbers.device.type == "cpu":
        return numbers.tolist
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    done = copies_done(numbers.device)

    def read() -> list[float]:
        done()
        found: list[float] = host.tolist()
        return found

    return read
