"""Read what was measured, to correct predictions by it: the outcome of a run, or the report of ``megads bench``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megads.config.run_files import CONFIG, METRICS, OUTCOME
from megads.config.run_folder import load_config
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.monitor.run_state.outcome import read_outcome
from megads.plan.time.measured import Measured, MeasuredRates, MeasuredRun
from megads.storage.reading import read_json

SECTIONS = ("data", "forward", "backward", "communication", "optimizer", "other")

LARGE_BYTES = 2**24
"""Of collectives whose rate is that of links, not of their start."""


def read_measured(path: Path) -> Measured:
    """Return what was measured in ``path``: a run folder, its metrics or outcome, or a file of ``megads bench --json``.

    Raises:
        ConfigError: one line that names the file and what is wrong with it.
    """
    if path.name in (METRICS, OUTCOME, CONFIG):
        path = path.parent
    if path.is_dir():
        return _read_run(path)
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; pass a run folder, or a file of `megads bench --json`") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON of `megads bench --json`: {error}") from None
    return _read_bench(content, path)


def _read_run(folder: Path) -> MeasuredRun:
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{folder}: not a run folder, it has no {CONFIG}; pass one, or a file of `megads bench --json`"
        )
    run, outcome = load_config(folder / CONFIG), read_outcome(folder)
    found: Mapping[str, float] = outcome.measured if outcome else {}
    if outcome is None or not outcome.device or not _positive(found, "work_s") or outcome.world_size < 1:
        raise ConfigError(
            f"{folder}: {OUTCOME} has no measured steps; anchor on a run of this version that is done or was stopped "
            "after some steps"
        )
    parts = {name: found[f"{name}_s"] for name in SECTIONS if f"{name}_s" in found}
    steps, scatter = int(found.get("steps", 0)), max(0.0, found.get("scatter", 0.0))
    return MeasuredRun(
        str(folder), run, outcome.device, outcome.world_size, outcome.per_host, found["work_s"], scatter, steps, parts
    )


def _read_bench(content: Any, path: Path) -> MeasuredRates:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(parts, dict) or not isinstance(content.get("device"), str):
        raise ConfigError(f"{path}: not a report of `megads bench --json`: no device, no parts")
    if content.get("form") == "tiny":
        raise ConfigError(f"{path}: a report of `megads bench --tiny`, whose rates are those of caches")
    try:
        return MeasuredRates(
            str(path),
            content["device"],
            tuple(_products(_rows(parts, "matmul"))),
            max((row["gb_per_s"] for row in _rows(parts, "memory") if row["pattern"] in STREAMS), default=0.0),
            dict(_links(_rows(parts, "collectives"))),
            tuple(_steps(_rows(parts, "training"), content["device"], path)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
        text = str(error).splitlines()[0]
        raise ConfigError(f"{path}: a row of `megads bench --json` lacks what it needs: {text:.80}") from None


STREAMS = ("copy", "add (triad)")
"""Patterns that read and write device memory."""


def _rows(parts: Mapping[str, Any], name: str) -> list[Any]:
    part = parts.get(name) or {}
    return list(part["rows"]) if part.get("status") in ("done", "partial") else []


def _products(rows: list[Any]) -> Iterator[tuple[str, float, float]]:
    for row in rows:
        shape = [int(word) for word in row["shape"].split(" x ")]
        yield row["dtype"], 2.0 * math.prod(shape), float(row["tflops"])


def _links(rows: list[Any]) -> Iterator[tuple[int, float]]:
    """Yield ranks of a group and the median of the bus bandwidths of its largest collectives."""
    large = [row for row in rows if row["bytes"] >= LARGE_BYTES and row["collective"] in LARGE]
    for ranks in sorted({int(row["ranks"]) for row in large if row["group"] != "across hosts"}):
        mine = [row for row in large if row["ranks"] == ranks and row["group"] != "across hosts"]
        most = max(row["bytes"] for row in mine)
        rates = sorted(float(row["bus_gb_per_s"]) for row in mine if row["bytes"] == most)
        yield ranks, rates[len(rates) // 2]


LARGE = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives of a training step whose bus bandwidth is that of links."""


def _steps(rows: list[Any], device: str, path: Path) -> Iterator[MeasuredRun]:
    for row in rows:
        if "settings" not in row:  # an older report
            continue
        run = RunConfig.model_validate(row["settings"])
        ranks, took = int(row["ranks"]), float(row["step_s"])
        if took > 0:
            yield MeasuredRun(f"{path}: {row['model']}", run, device, ranks, ranks, took, 0.0, int(row["steps"]))


def _positive(found: Mapping[str, float], name: str) -> bool:
    return found.get(name, 0.0) > 0
