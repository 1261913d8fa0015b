"""Energy: what counters measured is never mixed with what is estimated."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from megads.monitor.energy import Meter, Reading

pytest.importorskip("codecarbon")


def library(cpu_mode: str, gpu: bool) -> Any:
    """Return a tracker that has used 2 kWh in the CPU, 5 in GPUs and 1 in memory, at 0.1 kg of CO2 per kWh."""

    class Tracker:
        def __init__(self, output_handlers: list[Any], **given: Any):
            self.handlers, self.given = output_handlers, given
            parts = [type("RAM", (), {})(), type("CPU", (), {"_mode": cpu_mode})()]
            self._hardware = [*parts, *([type("GPU", (), {})()] if gpu else [])]

        def start(self) -> None:
            pass

        def stop(self) -> None:
            pass

        def flush(self) -> None:
            used = {"cpu_energy": 2.0, "gpu_energy": 5.0 * gpu, "ram_energy": 1.0}
            total = sum(used.values())
            for handler in self.handlers:
                handler.out(SimpleNamespace(**used, energy_consumed=total, emissions=0.1 * total), None)

    return Tracker


@pytest.mark.parametrize(
    ("mode", "gpu", "kwh", "estimated", "measured"),
    [
        ("intel_rapl", True, 7.0, 1.0, ("cpu", "gpu")),
        ("cpu_load", True, 5.0, 3.0, ("gpu",)),
        ("intel_rapl", False, 2.0, 1.0, ("cpu",)),
        ("cpu_load", False, 0.0, 3.0, ()),
        ("constant", False, 0.0, 3.0, ()),
    ],
)
def test_only_counters_measure(mode, gpu, kwh, estimated, measured):
    found = Meter("usa", library(mode, gpu)).read()
    assert (found.kwh, found.estimated_kwh, found.measured) == (kwh, estimated, measured)
    assert found.co2_kg == pytest.approx(0.1 * kwh)
    assert "ram" in found.estimated


def test_without_a_country_there_is_no_co2():
    assert math.isnan(Meter("", library("intel_rapl", True)).read().co2_kg)


def test_a_country_that_is_none_is_refused():
    with pytest.raises(ValueError, match="ENERGY_COUNTRY=XYZ is not a country that codecarbon knows"):
        Meter("XYZ", library("intel_rapl", False))


@pytest.mark.slow
def test_the_real_library_reads_this_host_without_a_network(monkeypatch, capfd):
    import socket

    def refuse(*words: Any) -> None:
        raise AssertionError("nothing is looked up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    meter = Meter("FRA")
    found = meter.read()
    meter.close()
    assert isinstance(found, Reading)
    assert found.estimated_kwh > 0  # memory has no counter
    assert ("cpu" in found.measured) == (found.kwh > 0 and "gpu" not in found.measured)
    assert "codecarbon" not in capfd.readouterr().err
