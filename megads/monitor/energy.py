"""Energy of one host by codecarbon: what counters measured, apart from what the library guesses.

codecarbon fills in what it cannot measure (a CPU without readable RAPL by its rated
power, memory by its size). Those parts are reported as estimated, and never added to the others.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

MEASURED_CPU = ("intel_rapl", "intel_power_gadget", "windows_emi")
"""Modes of codecarbon's CPU that read a counter."""

EVERY_S = 15.0  # seconds between readings of power, in a thread


@dataclass(frozen=True)
class Reading:
    """Energy since the start, of one host."""

    kwh: float  # measured by counters
    estimated_kwh: float  # of the parts that have none here
    co2_kg: float  # of ``kwh``, by the country's mix; nan without a country
    measured: tuple[str, ...]  # of cpu, gpu, ram; empty: nothing
    estimated: tuple[str, ...]  # likewise


class Meter:
    """Measures the whole host from now on, without a network, in a thread that reads every 15 s.

    Args:
        country: ISO code such as ``USA``; empty: no CO2 is reported.
        library: codecarbon's tracker, for tests.

    Raises:
        ImportError: codecarbon is not installed.
        ValueError: the library has no numbers for ``country``.
    """

    def __init__(self, country: str = "", library: Any = None):
        self.country = country.upper()
        self.keep = _keeper()
        logging.getLogger("codecarbon").setLevel(logging.CRITICAL)  # its import sets another
        self.tracker = (library or _library())(
            country_iso_code=self.country or "USA",  # it wants one; without ours its CO2 is not used
            output_handlers=[self.keep],
            output_methods=[],
            electricitymaps_api_token="",  # nothing is looked up
            measure_power_secs=EVERY_S,
            tracking_mode="machine",
            rapl_include_dram=True,
            allow_multiple_runs=True,
            log_level="critical",
        )
        if self.country:
            _check_country(self.country)
        self.tracker.start()

    def read(self) -> Reading | None:
        """Return what was used since the start; None when the library says nothing."""
        self.tracker.flush()
        found = self.keep.data
        if found is None:
            return None
        energies = {part: float(getattr(found, f"{part}_energy")) for part in ("cpu", "gpu", "ram")}
        measured = self._measured()
        estimated = tuple(part for part, kwh in energies.items() if part not in measured and kwh)
        kwh, guessed = (sum(energies[part] for part in parts) for parts in (measured, estimated))
        total = float(found.energy_consumed)
        rate = float(found.emissions) / total if self.country and total else float("nan")
        return Reading(kwh, guessed, kwh * rate, measured, estimated)

    def close(self) -> None:
        """Stop measuring."""
        self.tracker.stop()

    def _measured(self) -> tuple[str, ...]:
        """Return which parts counters measure. Whatever is not known to is estimated."""
        found = {type(each).__name__: each for each in getattr(self.tracker, "_hardware", ())}
        by_counter = {"cpu": getattr(found.get("CPU"), "_mode", "") in MEASURED_CPU, "gpu": "GPU" in found}
        return tuple(part for part in by_counter if by_counter[part])


def _library() -> Any:
    from codecarbon import OfflineEmissionsTracker

    return OfflineEmissionsTracker


def _keeper() -> Any:
    from codecarbon.output_methods.base_output import BaseOutput

    class Keep(BaseOutput):
        """Keeps what the library would write."""

        data: Any = None

        def out(self, total: Any, delta: Any) -> None:
            self.data = total

    return Keep()


def _check_country(country: str) -> None:
    from codecarbon.input import DataSource

    if country not in DataSource().get_global_energy_mix_data():
        raise ValueError(f"ENERGY_COUNTRY={country} is not a country that codecarbon knows; use a code such as USA")
