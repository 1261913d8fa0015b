"""The energy of a run is the sum over its hosts, and what no counter measured is not in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megads.checkpoint.resume.progress import Progress
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.settings.log import TrackConfig
from megads.monitor.energy import Reading
from megads.train import energy as module
from megads.train.energy import EnergyOfRun
from tests.ranks import groups_of, run_ranks

MEASURED = Reading(2.0, 0.5, 0.25, ("gpu",), ("ram",))
GUESSED = Reading(0.0, 0.75, 0.0, (), ("cpu", "ram"))
NO_COUNTRY = Reading(2.0, 0.5, float("nan"), ("gpu",), ("ram",))


def energy_of(folder: Path, hosts: list[str], readings: list[Reading | None], groups: Any, iteration: int = 0) -> Any:
    """Return the energy of a run whose ranks are on ``hosts`` and whose meters read ``readings``."""

    class Meter:
        def __init__(self, country: str):
            found = readings[groups.rank]
            if found is None:
                raise OSError("no meter")
            self.found = found

        def read(self) -> Reading:
            return self.found

    module.Meter = Meter  # type: ignore[assignment,misc]
    run = SimpleNamespace(track=TrackConfig())
    facts = {"run": run, "run_dir": folder, "groups": groups, "hosts": hosts, "device": torch.device("cpu")}
    return EnergyOfRun(SimpleNamespace(**facts, progress=Progress(iteration=iteration)))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _the_real_meter():
    kept = module.Meter
    yield
    module.Meter = kept


ALONE = Groups(Grid(), 0)


@pytest.mark.parametrize(
    ("reading", "row", "line"),
    [
        (
            MEASURED,
            {"energy_estimated_kwh": 0.5, "energy_kwh": 2.0, "energy_hosts": 1.0, "co2_kg": 0.25},
            "2 kWh measured on 1 of 1 hosts, 0.25 kg CO2; estimated, not measured: 0.5 kWh of what has no counter",
        ),
        (
            NO_COUNTRY,
            {"energy_estimated_kwh": 0.5, "energy_kwh": 2.0, "energy_hosts": 1.0},
            "2 kWh measured on 1 of 1 hosts; estimated, not measured: 0.5 kWh of what has no counter",
        ),
        (
            GUESSED,
            {"energy_estimated_kwh": 0.75},
            "not measured: no counter (RAPL, NVML) can be read here; estimated, not measured: 0.75 kWh of what has "
            "no counter",
        ),
        (None, {}, "not measured: OSError: no meter"),
    ],
)
def test_what_is_told(tmp_path, reading, row, line):
    energy = energy_of(tmp_path, ["a"], [reading], ALONE)
    assert energy.row() == row
    assert energy.line(row) == line
    files = list(tmp_path.rglob("emissions-000.csv"))
    assert len(files) == (reading is not None)
    if files:
        assert files[0].read_text().splitlines()[0] == ",".join(module.COLUMNS)


def test_what_earlier_starts_used_is_added(tmp_path):
    rows = [{"iteration": 4, "energy_kwh": 3.0, "co2_kg": 1.0}, {"iteration": 9, "energy_kwh": 9.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = energy_of(tmp_path, ["a"], [MEASURED], ALONE, iteration=4).row()
    assert (row["energy_kwh"], row["co2_kg"], row["energy_estimated_kwh"]) == (5.0, 1.25, 0.5)


def _sum_over_hosts(folder: str) -> None:
    """Of three ranks on two hosts the first of each host measures; the third is not asked."""
    rank = dist.get_rank()
    energy = energy_of(
        Path(folder), ["a", "a", "b"], [MEASURED, None, GUESSED], replace(groups_of(data=3), is_first_on_host=rank != 1)
    )
    assert (energy.meter is None) == (rank == 1)
    row = energy.row()
    assert row == {"energy_estimated_kwh": 1.25, "energy_kwh": 2.0, "energy_hosts": 1.0, "co2_kg": 0.25}
    assert "on 1 of 2 hosts" in energy.line(row)


@pytest.mark.dist
def test_rank_0_tells_the_sum_over_hosts(tmp_path):
    run_ranks(3, _sum_over_hosts, str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*.csv")) == ["emissions-000.csv", "emissions-002.csv"]
