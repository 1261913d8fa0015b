"""Tables of predicted and measured step times, and what is kept of them in the package."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from benchmarks.planner.fit import Measured, of_rows
from benchmarks.planner.memory import Summary
from benchmarks.planner.time import later_rows
from megads.plan.errors import ALL, FILE, class_of
from megads.plan.time.constants import Constants

BEGIN, END = "<!-- python -m benchmarks.planner --write -->", "<!-- end -->"

FIRST = 3
"""Of the proposed layouts of a sweep the measured best is to be among so many."""


def report(
    given: Sequence[Measured], left_out: Sequence[float] | None, later: Sequence[Measured], by: Constants
) -> str:
    """Return the tables as Markdown; without ``left_out`` only what the constants, fitted to all rows, give."""
    errors = left_out or [each.predicted(by) / each.row.measured - 1 for each in given]
    how = "without the row's model" if left_out else "to all rows"
    unseen = [each.predicted(by) / each.row.measured - 1 for each in later]
    parts = [
        f"Step time, {len(given)} rows; error with constants fitted {how}:",
        _summary(given, errors, lambda each: each.row.suite),
        f"Rows of other sources that no constant was fitted to, {len(later)}:",
        _summary(later, unseen, lambda each: each.row.suite),
        "Weak scaling, step time on the most devices by that on the fewest:",
        _scaling(given, by),
        "Sweeps of layouts, place of the measured best in the predicted order:",
        _sweeps(given, by),
        "Row by row:",
        _rows(given, errors, by),
    ]
    return "\n\n".join(parts)


def held_back() -> list[Measured]:
    """Return rows that the constants are not fitted to."""
    return of_rows(later_rows())


def errors_of(given: Sequence[Measured], errors: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return mean and 95th percentile of each kind of device."""
    groups = {ALL: list(errors)}
    for each, error in zip(given, errors, strict=True):
        groups.setdefault(class_of(each.case.place.device.device_name), []).append(error)
    return {name: dict(zip(("mean", "p95", "rows"), _of(found), strict=True)) for name, found in groups.items()}


def write_errors(time: dict[str, dict[str, float]], memory: Summary) -> None:
    """Write ``errors.json`` of the package."""
    rounded = {name: round(value, 4) for name, value in asdict(memory).items()}
    FILE.write_text(json.dumps({"step time": time, "memory": rounded}, indent=1) + "\n")


def _of(errors: Iterable[float]) -> tuple[float, float, int]:
    sizes = sorted(map(abs, errors))
    return (
        round(statistics.fmean(sizes), 4),
        round(sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))], 4),
        len(sizes),
    )


def _summary(given: Sequence[Measured], errors: Sequence[float], key: Callable[[Measured], str]) -> str:
    groups: dict[str, list[float]] = defaultdict(list)
    for each, error in zip(given, errors, strict=True):
        groups[key(each)].append(error)
    lines = ["| rows of | rows | mean error | 95 of 100 within | largest |", "|---|---:|---:|---:|---:|"]
    for name, found in [*groups.items(), ("all", list(errors))]:
        mean, p95, rows = _of(found)
        lines.append(f"| {name} | {rows} | {mean:.1%} | {p95:.1%} | {max(map(abs, found)):.1%} |")
    return "\n".join(lines)


def _scaling(given: Sequence[Measured], by: Constants) -> str:
    groups: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for each in given:
        if each.row.suite == "H100":
            groups[each.row.group, each.row.system].append(each)
    lines = ["| model | system | devices | measured | predicted |", "|---|---|---|---:|---:|"]
    for (model, system), found in groups.items():
        few, many = (pick(found, key=lambda each: each.row.ranks) for pick in (min, max))
        grew = many.row.measured / few.row.measured, many.predicted(by) / few.predicted(by)
        lines.append(f"| {model} | {system} | {few.row.ranks} to {many.row.ranks} | {grew[0]:.3f} | {grew[1]:.3f} |")
    return "\n".join(lines)


def _sweeps(given: Sequence[Measured], by: Constants) -> str:
    groups: dict[str, list[Measured]] = defaultdict(list)
    for each in given:
        if each.row.sweep:
            groups[each.row.sweep].append(each)
    lines = ["| sweep | layouts | place |", "|---|---:|---:|"]
    for name, found in groups.items():
        if len(found) > 1:
            best = min(found, key=_per_sequence)
            order = sorted(found, key=lambda each: each.predicted(by) / each.sequences)
            lines.append(f"| {name} | {len(found)} | {order.index(best) + 1} |")
    return "\n".join(lines)


def _per_sequence(each: Measured) -> float:
    return each.row.measured / each.sequences


def _rows(given: Sequence[Measured], errors: Sequence[float], by: Constants) -> str:
    lines = [
        "| rows of | model | system | devices | TP PP SP | recompute | measured s | predicted s | error | left out |",
        "|---|---|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for each, error in zip(given, errors, strict=True):
        row, seconds, settings = each.row, each.predicted(by), each.row.settings
        grid = " ".join(settings.get(name) or "1" for name in ("TP", "PP", "SP"))
        lines.append(
            f"| {row.suite} | {row.group} | {row.system} | {row.ranks} | {grid} | {settings.get('RECOMPUTE', 'none')} "
            f"| {row.measured:.3f} | {seconds:.3f} | {seconds / row.measured - 1:+.1%} | {error:+.1%} |"
        )
    return "\n".join(lines)
