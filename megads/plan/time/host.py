"""A host without accelerators as a place: its rates are a reference that only a measurement turns into predictions."""

from __future__ import annotations

from megads.plan.accelerators import Accelerator
from megads.plan.place import Level, Place

REFERENCE_TFLOPS = 0.05
"""Of a rank on a CPU, in every dtype. Nothing depends on it: an anchor gives the rates in multiples of it."""

SOURCE = "reference rates of a CPU, which mean nothing without an anchor"

_ROW = Accelerator("cpu", 0, 0, 10, 1, 1, 1, 0.5, SOURCE)


class HostPlace(Place):
    """A place whose devices are the hosts' own processors."""

    def peak_tflops(self, dtype: str) -> float:
        """Return the reference, see :data:`REFERENCE_TFLOPS`."""
        return REFERENCE_TFLOPS


def host_place(per_host: int) -> HostPlace:
    """Return hosts without accelerators, with ``per_host`` ranks each."""
    return HostPlace(
        name="cpu",
        device=_ROW,
        per_host=per_host,
        memory_gib=0,
        levels=(Level(per_host, 1, 50e-6, "inside a host"), Level(0, 1, 50e-6, "between hosts")),
        hosts=0,
        queues=(),
        host_watts=0,
        pue=1,
        grams_per_kwh=0,
        storage_gb_s=0,
        host_mtbf_hours=0,
        start_s=0,
        source=SOURCE,
    )
