"""Where a run would be: devices, what joins them, queues, power."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megads.errors import ConfigError
from megads.plan.accelerators import ACCELERATORS, Accelerator
from megads.plan.peaks import peak_tflops


@dataclass(frozen=True)
class Level:
    """What joins neighbouring ranks.

    Attributes:
        ranks: that it joins; 0: all.
        gb_s: per rank and direction.
        latency_s: of a message.
        what: in words.
    """

    ranks: int
    gb_s: float
    latency_s: float
    what: str


@dataclass(frozen=True)
class Queue:
    """A queue: its hosts and hours."""

    name: str
    min_hosts: int
    max_hosts: int
    hours: float


@dataclass(frozen=True)
class Place:
    """A machine, or a device on its usual hosts.

    Attributes:
        levels: what joins its ranks, the smallest groups first.
        hosts: 0: not known.
        pue: power of the site by that of its hosts.
        grams_per_kwh: of CO2.
        start_s: from the start of a job to its first step.
        source: where the figures are from.
    """

    name: str
    device: Accelerator
    per_host: int
    levels: tuple[Level, ...]
    hosts: int = 0
    queues: tuple[Queue, ...] = ()
    host_watts: float = 0
    pue: float = 1
    grams_per_kwh: float = 0
    storage_gb_s: float = 0
    host_mtbf_hours: float = 0
    start_s: float = 0
    source: str = ""

    def level(self, ranks: int) -> Level:
        """Return what joins neighbouring ``ranks``."""
        return next(each for each in self.levels if not each.ranks or ranks <= each.ranks)

    def peak_tflops(self, dtype: str) -> float:
        """Return the dense peak of a device.

        Raises:
            ConfigError: it is not known.
        """
        found = peak_tflops(self.device.device_name, dtype, {}, self.device.units)
        if found is None:
            raise ConfigError(f"DTYPE={dtype}: the peak of {self.device.device_name} is not known; use DTYPE=bf16")
        return found


def place_of(name: str, *, root: Path | None = None) -> Place:
    """Return the place ``name``: a device on its usual hosts.

    Raises:
        ConfigError: it is not known.
    """
    if name.lower() not in ACCELERATORS:
        raise ConfigError(f"{name} is no device; known: {', '.join(ACCELERATORS)}")
    device = ACCELERATORS[name.lower()]
    pair = (Level(2, device.pair_gb_s, 3e-6, "inside a card"),) if device.pair_gb_s else ()
    levels = (
        *pair,
        Level(device.per_host, device.link_gb_s, 5e-6, "inside a host"),
        Level(0, device.network_gb_s, 15e-6, "between hosts"),
    )
    return Place(name.lower(), device, device.per_host, levels, source=device.source)
