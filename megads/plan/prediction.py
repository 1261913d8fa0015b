"""What a run is expected to take: seconds of a step and memory, with the error that such predictions had elsewhere.

Made once, before the ranks start, and kept in the run folder; what the run measures is compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from megads.config.run_files import PREDICTED
from megads.config.run_folder import write_whole
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.plan.errors import error_of
from megads.plan.places.place import Place
from megads.plan.places.same_device import is_cpu
from megads.plan.time.step import StepTime, step_time
from megads.storage.checksums import NO_CRC, is_sealed, seal
from megads.storage.reading import SMALL, parse_json, read_bytes
from megads.text.units import count, exact

PARTS = ("compute", "memory", "optimizer", "communication", "idle", "host")
"""What the seconds of a predicted step are for: ``memory`` of passes, ``optimizer`` what is done once a step."""

SHOWN = 0.005  # of a step: a smaller part is not shown


@dataclass(frozen=True)
class Prediction:
    """What is expected of a run.

    Attributes:
        memory_bytes: the most that a rank uses.
        step_s: of a step of the full global batch; 0: not known.
        tokens_per_s: of all ranks in such a step; 0: not known.
        mfu: share of the devices' peak, as ``FLOPS_CAUSAL`` counts; 0: not known.
        parts: seconds of the step by :data:`PARTS`.
        error: mean relative error of such predictions on measured runs; 0: not known.
        worst_error: that 95 of 100 of them did not exceed; 0: not known.
        device: that it is about, as torch reports it.
        source: the place whose facts it is made from, or the measurement that corrected them.
    """

    memory_bytes: int = 0
    step_s: float = 0.0
    tokens_per_s: float = 0.0
    mfu: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    error: float = 0.0
    worst_error: float = 0.0
    device: str = ""
    source: str = ""

    def line(self) -> str:
        """Return the banner's line of the step; empty where its time is not known."""
        if not self.step_s:
            return ""
        mfu = f", mfu {self.mfu:.0%}" if self.mfu else ""
        return (
            f"about {exact(self.step_s)} predicted ({self.source}{self._error()}), "
            f"{count(self.tokens_per_s)} tokens/s{mfu}{self._shares()}"
        )

    def _shares(self) -> str:
        """Return where the time goes; of a CPU only its sum means something."""
        if is_cpu(self.device):
            return ""
        shown = [f"{name} {took / self.step_s:.0%}" for name, took in self.parts.items() if took > SHOWN * self.step_s]
        return f": {', '.join(shown)}"

    def _error(self) -> str:
        if not self.error:
            return ""
        return f"; on measured runs off by {self.error:.0%} on average, {self.worst_error:.0%} in 95 of 100"


def predict(run: RunConfig, world_size: int, memory_bytes: int, place: Place | None) -> Prediction:
    """Return what is expected of a derived ``run``; without a ``place`` nothing of its time.

    A model or a layout that the estimate of time does not cover has none, too.
    """
    if place is None:
        return Prediction(memory_bytes)
    try:
        found = step_time(run, world_size, place)
    except ConfigError:
        return Prediction(memory_bytes)
    rates, error, on_cpu = place.rates, error_of(place, run), is_cpu(place.device.device_name)
    is_known = not (rates.is_anchored or on_cpu)
    mfu = found.mfu_causal if run.profile.flops_causal else found.mfu_full
    return Prediction(
        memory_bytes,
        found.step_s,
        found.tokens_per_s * world_size,
        0.0 if on_cpu else mfu,
        _as_one(parts_of(found)) if on_cpu else parts_of(found),
        error.mean if is_known else 0.0,
        error.p95 if is_known else 0.0,
        device=place.device.device_name,
        source=rates.source.partition(":")[0] if rates.is_anchored else place.name,
    )


def parts_of(found: StepTime) -> dict[str, float]:
    """Return the seconds of a step by :data:`PARTS`."""
    parts = dict.fromkeys(PARTS, 0.0)
    for line in found.lines:
        parts["optimizer" if line.kind == "memory" and line.is_once else line.kind] += line.seconds
    return parts


def _as_one(parts: Mapping[str, float]) -> dict[str, float]:
    """Return parts of which a CPU's reference tells two apart: the rank's own work, and what it waits for others."""
    waits = {name: parts[name] for name in ("communication", "idle")}
    return {**dict.fromkeys(PARTS, 0.0), **waits, "compute": sum(parts.values()) - sum(waits.values())}


def write_prediction(folder: Path, prediction: Prediction) -> None:
    """Write ``predicted.json`` of a run folder.

    Raises:
        ConfigError: the folder cannot be written, or its disk is full.
    """
    write_whole(folder / PREDICTED, seal(json.dumps({"crc32": NO_CRC, **asdict(prediction)}) + "\n"))


def read_prediction(folder: Path) -> tuple[Prediction, str]:
    """Return what was predicted for the run in ``folder``, and why that cannot be read; both empty without a file."""
    path = folder / PREDICTED
    try:
        raw = read_bytes(path, SMALL)
        given = parse_json(raw)
        if not isinstance(given, dict) or not is_sealed(raw, given.get("crc32")):
            raise ValueError("it changed since it was written, its CRC-32 differs")
        return Prediction(**{each.name: given[each.name] for each in fields(Prediction)}), ""
    except FileNotFoundError:
        return Prediction(), ""
    except (OSError, ValueError, KeyError) as error:
        return Prediction(), f"{path}: no prediction to compare with: {error}"
