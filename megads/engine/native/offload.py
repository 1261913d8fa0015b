"""Masters and optimizer state on the host (``OFFLOAD_OPTIMIZER=cpu``): gradients go there, and weights come back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megads.device.host_copies import upload
from megads.engine.native.units import Unit


class Offload:
    """Copies of ``units`` whose masters are on the host; of others there is nothing to do.

    A CPU has one memory; masters are apart there, too, so that a run of one machine is that of another.
    """

    def __init__(self, units: Sequence[Unit]):
        self.units = [unit for unit in units if unit.gradients is not unit.reduced]
        self.is_on = bool(self.units)

    @torch.no_grad()
    def gradients_to_host(self) -> None:
        """Begin to copy the reduced gradients; who reads a number of the device afterwards has waited for them."""
        for unit in self.units:
            unit.gradients.copy_(unit.reduced, non_blocking=True)

    @torch.no_grad()
    def weights_to_device(self) -> None:
        """Begin to copy the masters, in the model's type."""
        for unit in self.units:
            unit.part.copy_(upload(unit.masters.to(unit.part.dtype), unit.part.device))
