"""Fit the constants of the time model to measured rows, and leave models out to see how it does on one it never saw."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy

from benchmarks.planner.rows import Row
from benchmarks.planner.time import place_for, rows, run_of
from megads.plan.time.constants import FILE, Constants
from megads.plan.time.step import Case, case_of, lines_of
from megads.plan.time.systems import SYSTEMS

SPREAD = {
    "memory": 0.06, "network": 0.1, "links": 0.1, "matmul_h100": 0.06, "matmul_a100": 0.06, "matmul_fp8": 0.08,
    "kernel_s": 0.12, "gap_s": 0.3, "power": 0.7, "slow_attention": 0.5, "operands": 0.5, "scores": 0.5,
    "jitter": 0.7, "jitter_fp8": 0.7, "tensor_hidden": 0.5, "ring_hidden": 0.5, "data_hidden": 0.5, "ring": 0.7,
    "attention": 0.15,
}  # fmt: skip
"""How far, as a logarithm, a constant may be from what kernels reach alone (``Constants``' defaults); others 0.2."""

NOISE = 0.05
"""Of a measurement."""

NUDGE = 1e-4
"""Of a logarithm, for slopes."""

SHARES = ("tensor_hidden", "ring_hidden", "data_hidden")
NAMES = [each.name for each in fields(Constants)]


@dataclass(frozen=True)
class Measured:
    """A row with all that its prediction needs besides the constants."""

    row: Row
    case: Case
    sequences: int  # of a step

    def predicted(self, by: Constants) -> float:
        """Return the seconds of a step."""
        return sum(line.seconds for line in lines_of(self.case, by))


def measured() -> list[Measured]:
    """Return the rows that constants are fitted to."""
    return of_rows(rows())


def of_rows(given: Sequence[Row]) -> list[Measured]:
    """Return rows with what their predictions need."""
    found = []
    for row in given:
        run = run_of(row)
        case = case_of(run, row.ranks, place_for(row.place), SYSTEMS[row.system])
        found.append(Measured(row, case, run.train.global_batch))
    return found


def fit(given: Sequence[Measured], start: Constants | None = None, steps: int = 12) -> Constants:
    """Return the constants that fit ``given`` best, near their defaults; large errors count less than their square."""
    usual = _packed(Constants())
    spread = numpy.array([SPREAD.get(name, 0.2) for name in NAMES])
    logs = numpy.log([each.row.measured for each in given])
    groups = [(each.row.group, each.row.suite) for each in given]
    weights = numpy.array([1 / NOISE / groups.count(group) ** 0.25 for group in groups])

    def off(point: numpy.ndarray) -> numpy.ndarray:
        by = _unpacked(point)
        errors = numpy.log([each.predicted(by) for each in given]) - logs
        return numpy.concatenate([weights * errors, (point - usual) / spread])

    return _unpacked(_least(off, _packed(start) if start else usual, steps))


def _least(off: Callable[[numpy.ndarray], numpy.ndarray], point: numpy.ndarray, steps: int) -> numpy.ndarray:
    """Return where the errors of ``off`` are least: damped Gauss-Newton steps (Levenberg, Marquardt)."""
    errors, damping = off(point), 1e-2
    for _ in range(steps):
        slopes = numpy.stack([(off(point + NUDGE * unit) - errors) / NUDGE for unit in numpy.eye(len(point))], axis=1)
        # An error e counts as 2 (sqrt(1 + e^2) - 1): as its square while it is small.
        count = 1 / numpy.sqrt(1 + errors**2)
        normal, pull = slopes.T @ (count[:, None] * slopes), slopes.T @ (count * errors)
        for _ in range(8):
            found = point - numpy.linalg.solve(normal + damping * numpy.diag(numpy.diag(normal)), pull)
            after = off(found)
            if _cost(after) < _cost(errors):
                point, errors, damping = found, after, damping / 5
                break
            damping *= 5
        else:
            break
    return point


def _cost(errors: numpy.ndarray) -> float:
    return float(numpy.sum(numpy.sqrt(1 + errors**2) - 1))


def left_out(given: Sequence[Measured], start: Constants) -> list[float]:
    """Return the relative error of every row, with constants that no row of its model was used for."""
    errors = {}
    for group in sorted({each.row.group for each in given}):
        by = fit([each for each in given if each.row.group != group], start, steps=4)
        errors.update(
            {id(each): each.predicted(by) / each.row.measured - 1 for each in given if each.row.group == group}
        )
    return [errors[id(each)] for each in given]


def write(by: Constants) -> None:
    """Write the constants of the package."""
    rounded = {name: float(f"{value:.4g}") for name, value in asdict(by).items()}
    FILE.write_text(json.dumps({"constants": rounded}, indent=1) + "\n")


def _packed(by: Constants) -> numpy.ndarray:
    values = [(name, getattr(by, name)) for name in NAMES]
    return numpy.array([numpy.log(value / (1 - value) if name in SHARES else value) for name, value in values])


def _unpacked(point: numpy.ndarray) -> Constants:
    values = {name: float(numpy.exp(value)) for name, value in zip(NAMES, point, strict=True)}
    return Constants(**{name: value / (1 + value) if name in SHARES else value for name, value in values.items()})
