"""How far off predictions were on measured runs, to be shown next to each prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from megads.config.schema import RunConfig
from megads.families.encoder_decoder import has_decoder
from megads.families.table import FAMILIES
from megads.plan.places.place import Place

FILE = Path(__file__).with_name("errors.json")
"""``python -m benchmarks.planner --write`` makes it."""

CLASSES = {"V100": "V100", "A100": "A100", "GH200": "GH200", "H100": "H100", "H200": "H200"}
"""Kinds of devices with measured runs, by a word of the device's name."""

ALL = "all"


@dataclass(frozen=True)
class Error:
    """Relative errors of predictions: of step times, of models that the constants were not fitted to; or of memory.

    Attributes:
        mean: of all rows, without their signs.
        p95: that 95 of 100 rows do not exceed.
        rows: how many.
        what: which rows these are, for people.
    """

    mean: float
    p95: float
    rows: int
    what: str


def error_of(place: Place, run: RunConfig) -> Error:
    """Return the error that predictions of step times had on measured runs of the same kind of device.

    Of other devices, and of models of which none was measured, it is that of all rows, and ``what`` says so.
    """
    kind = class_of(place.device.device_name)
    found = _read()["step time"]
    each = found.get(kind, found[ALL])
    what = f"{each['rows']} measured runs on {kind}" if kind in found else _other(place, each["rows"])
    if has_decoder(run.model) or FAMILIES[run.model.family].samples != "causal":
        what += f", none of them {run.model.family}"
    return Error(each["mean"], each["p95"], each["rows"], what)


def memory_error() -> Error:
    """Return the error that the estimate of memory had on the peaks of published runs, all on accelerators."""
    found = _read()["memory"]
    return Error(found["peak_mean"], found["peak_p95"], found["rows"], f"{found['rows']} published runs")


def class_of(device_name: str) -> str:
    """Return the kind of device that measured runs are grouped by; empty where there are none."""
    words = device_name.upper().replace("-", " ").split()
    return next((kind for word, kind in CLASSES.items() if word in words), "")


def _other(place: Place, rows: int) -> str:
    return f"{rows} measured runs on other devices, none on {place.device.device_name}: it may be larger"


@cache
def _read() -> dict[str, Any]:
    from megads.storage.reading import read_json

    found: dict[str, Any] = read_json(FILE)
    return found
