"""What a picture shows, before it is a PNG, a page or text: charts of curves with few points."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megads.errors import ConfigError
from megads.monitor.columns import Column, Columns
from megads.monitor.plots.downsample import RAW, Points, downsample
from megads.monitor.plots.panels import (
    AXES,
    BRANCHED,
    Panel,
    axis_of,
    label,
    marks_of,
    panels_for,
    place,
    skipped_ranges,
    values_of,
)
from megads.monitor.plots.source import Run

FAR = 30.0  # times the median: from there on a logarithmic scale
SPARSE = ("valid_loss", "task/")  # keys that begin so: points of their own, which no hole divides
OWN_COLOUR = {"lm_loss": 0, "valid_loss": 1}  # of one run, in every chart


@dataclass(frozen=True)
class Curve:
    """One line."""

    run: int  # its number
    key: str
    label: str
    points: Points
    last: float = math.nan  # value that is a number
    base: np.ndarray | None = None  # of a stacked curve what lies below it; ``points`` is then its upper edge

    @property
    def sparse(self) -> bool:
        """Return whether each point gets a dot."""
        return self.key.startswith(SPARSE)


@dataclass(frozen=True)
class Chart:
    """One panel with its curves, or with one stacked bar per run: ``bars[run][key]``."""

    panel: Panel
    keys: tuple[str, ...]  # of all curves, in the order of their dashes or colours
    curves: tuple[Curve, ...]
    log: bool
    bars: tuple[tuple[float, ...], ...] = ()

    @property
    def labels(self) -> list[str]:
        """Return what the legend calls the keys."""
        return [label(key) for key in self.keys]

    def key_colour(self, key: str) -> int:
        """Return the number of a key's colour where keys differ by colour; a key has the same one in every chart."""
        shift = 1 if self.keys[0] == "valid_loss" else 0
        return OWN_COLOUR.get(key, self.keys.index(key) + shift)


@dataclass(frozen=True)
class Drawing:
    """All that is drawn of ``runs``. Points and marks stand at iterations; ``axes`` says where these are."""

    runs: tuple[Run, ...]
    axis: str
    axes: tuple[dict[str, Column], ...]  # of each run: name of an axis -> its values
    charts: tuple[Chart, ...]
    marks: tuple[dict[str, np.ndarray], ...]
    skipped_ranges: tuple[list[tuple[float, float]], ...]
    smooth: int

    def on_axes(self, run: int, iterations: np.ndarray) -> dict[str, np.ndarray]:
        """Return where iterations of a run are on each axis that all runs have."""
        return {axis: place(self.axes[run][axis], iterations) for axis in self.shared_axes}

    @property
    def shared_axes(self) -> list[str]:
        """Return the axes that all runs have."""
        return [name for name in AXES if all(name in axes for axes in self.axes)]

    def at(self, run: int, iterations: np.ndarray) -> np.ndarray:
        """Return where iterations of a run are on the axis of this drawing."""
        return place(self.axes[run][self.axis], iterations)

    def colour(self, chart: Chart, curve: Curve) -> int:
        """Return the number of a curve's colour: the run's, or the key's where there is one run."""
        return curve.run if len(self.runs) > 1 else chart.key_colour(curve.key)

    def dash(self, chart: Chart, curve: Curve) -> int:
        """Return the number of a curve's dashes: the key's where runs differ by colour."""
        return chart.keys.index(curve.key) if len(self.runs) > 1 and not curve.sparse else 0

    def behind(self, chart: Chart, curve: Curve) -> int:
        """Return how many later curves of the chart hide this one, being equal to it."""
        later = chart.curves[chart.curves.index(curve) + 1 :]
        return sum(_hides(each, curve) for each in later)


def draw(
    runs: Sequence[Run], *, keys: Sequence[str] = (), axis: str = "iteration", smooth: int = 1, most: int
) -> Drawing:
    """Return what to draw of ``runs``.

    Args:
        runs: with their columns.
        keys: panels or keys; empty: whatever there is.
        axis: one of :data:`AXES`.
        smooth: rows around a point whose mean a line shows.
        most: points of a curve that stand for several rows.

    Raises:
        ConfigError: a run has no such axis, or none has such a key.
    """
    columns = [run.columns for run in runs]
    axes = tuple(_axes_of(each) for each in columns)
    for run, own in zip(runs, axes, strict=True):
        if axis not in own:
            raise ConfigError(
                f"{run.path}: no {AXES[axis][1]} in it, so --x {axis} is not available; use --x iteration"
            )
    charts = [_chart(columns, panel, of_panel, most, smooth) for panel, of_panel in panels_for(columns, keys)]
    if not charts:
        raise ConfigError(f"{runs[0].path}: nothing to draw yet; rows with lm_loss start with the first step")
    return Drawing(
        tuple(runs),
        axis,
        axes,
        tuple(charts),
        _marks(runs),
        tuple(skipped_ranges(each) for each in columns),
        smooth,
    )


def _marks(runs: Sequence[Run]) -> tuple[dict[str, np.ndarray], ...]:
    """Return the marks of each run; a branch point stands on the run that it is of, or else on the branch."""
    marks = [marks_of(run.columns) for run in runs]
    folders = [os.path.realpath(run.path.parent) for run in runs]
    for number, run in enumerate(runs):
        if run.branch is None:
            continue
        of = os.path.realpath(run.branch.of)
        place = marks[folders.index(of) if of in folders else number]
        place[BRANCHED] = np.union1d(place.get(BRANCHED, np.empty(0)), [float(run.branch.iteration)])
    return tuple(marks)


def _chart(runs: Sequence[Columns], panel: Panel, keys: Sequence[str], most: int, smooth: int) -> Chart:
    curves = [
        _curve(number, values_of(run, panel, key), panel, key, most, smooth)
        for number, run in enumerate(runs)
        for key in keys
        if key in run
    ]
    if panel.stacked and (len(runs) > 1 or any(len(curve.points.x) < 2 for curve in curves)):
        none = np.zeros(1)
        parts = [[values_of(run, panel, key).numbers().y if key in run else none for key in keys] for run in runs]
        bars = tuple(tuple(float(np.mean(part)) if len(part) else 0.0 for part in of_run) for of_run in parts)
        return Chart(panel, tuple(keys), (), False, bars)
    curves = _stacked(curves) if panel.stacked else curves
    return Chart(panel, tuple(keys), tuple(curves), panel.spiky and _stands_out(curves))


def _stacked(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves on top of each other, at the points of the first."""
    x = curves[0].points.x
    base, found = np.zeros(len(x)), []
    for curve in curves:
        column = Column(curve.points.x, curve.points.y).numbers()
        y = np.interp(x, column.x, column.y) if len(column.x) else np.zeros(len(x))
        found.append(replace(curve, points=Points(x, base + y, size=curve.points.size), base=base))
        base = base + y
    return found


def _hides(upper: Curve, lower: Curve) -> bool:
    """Return whether most of ``lower`` lies exactly under ``upper``."""
    if upper.base is not None or not len(upper.points.x) or not len(lower.points.x):
        return False
    at = np.isin(lower.points.x, upper.points.x)
    if 2 * at.sum() < len(at):
        return False
    mine, other = lower.points.y[at], upper.points.y[np.isin(upper.points.x, lower.points.x)]
    known = np.isfinite(mine) & np.isfinite(other)
    if not known.any():
        return False
    span = max(float(np.ptp(mine[known])), 1e-3 * float(np.abs(mine[known]).max()), 1e-30)
    return float(np.mean(np.abs(mine - other)[known] < 1e-3 * span)) > 0.5


def _axes_of(run: Columns) -> dict[str, Column]:
    return {name: axis for name in AXES if (axis := axis_of(run, name)) is not None}


def _curve(run: int, column: Column, panel: Panel, key: str, most: int, smooth: int) -> Curve:
    sparse, known = key.startswith(SPARSE), column.numbers()
    most = most // RAW if panel.stacked else most  # an area costs a browser much more than a line
    points = downsample(known if sparse else column, most, 1 if sparse or panel.exact else smooth, holes=not sparse)
    return Curve(run, key, label(key), points, float(known.y[-1]) if len(known.y) else math.nan)


def _stands_out(curves: Sequence[Curve]) -> bool:
    if not curves:
        return False
    tops = np.concatenate([_finite(each.points.y if each.points.high is None else each.points.high) for each in curves])
    lows = np.concatenate([_finite(each.points.y if each.points.low is None else each.points.low) for each in curves])
    return bool(len(tops) and lows.min() > 0 and tops.max() > FAR * np.median(tops))


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
