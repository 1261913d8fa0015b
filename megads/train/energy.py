"""Energy of a run: one rank of each host measures it, rank 0 reports the sum."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import torch
import torch.distributed as dist

from megads.cluster.hosts import this_host
from megads.monitor.columns import read_columns
from megads.monitor.energy import Meter, Reading
from megads.monitor.log import LOG
from megads.text.secrets import hidden
from megads.train.setup import Training

COLUMNS = ("time", "iteration", "host", "energy_kwh", "measured", "estimated_kwh", "estimated", "co2_kg")


class EnergyOfRun:
    """Measures energy from here to the end of a run, on every host.

    A host that cannot be measured counts as nothing, and is counted as not measured; the run continues.
    """

    def __init__(self, training: Training):
        self.training, groups = training, training.groups
        self.meter: Meter | None = None
        self.why = "no counter (RAPL, NVML) can be read here"
        self.before = _earlier(training) if groups.rank == 0 else {}
        if groups.is_first_on_host:
            self.meter = self._start()

    def _start(self) -> Meter | None:
        try:
            return Meter(self.training.run.track.energy_country)
        except Exception as error:
            self.why = hidden(f"{type(error).__name__}: {error}")
            LOG.warning("energy   not measured: %s", self.why)
            return None

    def row(self) -> dict[str, float]:
        """Return the entries of a metrics row, on rank 0 the sums over hosts and earlier starts. Collective.

        ``energy_kwh`` and ``co2_kg`` are of what counters measured, and missing where they
        measured nothing; ``energy_estimated_kwh`` of what has no counter.
        """
        found = self._read()
        own = [0.0, 0.0, 0.0, 0.0]
        if found is not None:
            own = [found.kwh, found.estimated_kwh, found.co2_kg if found.measured else 0.0, float(bool(found.measured))]
            self._keep(found)
        sums = torch.tensor(own, device=self.training.device)
        if self.training.groups.grid.world_size > 1:
            dist.all_reduce(sums, group=self.training.groups.world)
        kwh, estimated, co2, measured = sums.tolist()
        entries = {"energy_estimated_kwh": estimated} if estimated else {}
        if measured:
            entries |= {"energy_kwh": kwh, "energy_hosts": measured, **({"co2_kg": co2} if co2 == co2 else {})}
        return {name: value + (self.before.get(name, 0) if name in ADDED else 0) for name, value in entries.items()}

    def line(self, row: dict[str, float]) -> str:
        """Return how the end of a run reports ``row``."""
        estimated = row.get("energy_estimated_kwh", 0.0)
        guess = f"; estimated, not measured: {estimated:.3g} kWh of what has no counter" if estimated else ""
        if "energy_kwh" not in row:
            return f"not measured: {self.why}{guess}"
        co2 = f", {row['co2_kg']:.3g} kg CO2" if "co2_kg" in row else ""
        some = f"{row['energy_hosts']:.0f} of {len(set(self.training.hosts) or {this_host()})} hosts"
        return f"{row['energy_kwh']:.3g} kWh measured on {some}{co2}{guess}"

    def close(self) -> None:
        """Stop measuring."""
        if self.meter is not None:
            self.meter.close()

    def _read(self) -> Reading | None:
        try:
            return self.meter.read() if self.meter is not None else None
        except Exception as error:
            self.why, self.meter = hidden(f"{type(error).__name__}: {error}"), None
            LOG.warning("energy   not measured any more: %s", self.why)
            return None

    def _keep(self, found: Reading) -> None:
        """Add a line to this host's own file; a disk that is full costs the line."""
        t = self.training
        folder = Path(t.run.track.codecarbon_dir) if t.run.track.codecarbon_dir else t.run_dir / "energy"
        path = folder / f"emissions-{t.groups.rank:03d}.csv"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S")
        words = (" ".join(found.measured), found.estimated_kwh, " ".join(found.estimated))
        co2 = found.co2_kg if found.measured and found.co2_kg == found.co2_kg else ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    writer.writerow(COLUMNS)
                writer.writerow([moment, t.progress.iteration, this_host(), found.kwh, *words, co2])
        except OSError as error:
            LOG.warning("%s: %s", path, error.strerror)


ADDED = ("energy_kwh", "energy_estimated_kwh", "co2_kg")
"""Entries to which earlier starts of the run are added, up to the checkpoint from which it resumes."""


def _earlier(training: Training) -> dict[str, float]:
    iteration = training.progress.iteration
    path = training.run_dir / "metrics.jsonl"
    found: dict[str, float] = {}
    if iteration and path.is_file():
        for name, column in read_columns(path, lambda key: key in ADDED).items():
            values = [v for i, v in zip(column.x, column.y, strict=True) if i <= iteration and v]
            found |= {name: float(values[-1])} if values else {}
    return found
