"""What a picture shows, before it is a PNG, a page or text: charts of curves with few points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megads.errors import ConfigError
from megads.monitor.plots.columns import Column, Columns
from megads.monitor.plots.panels import (
    AXES,
    Panel,
    axis_of,
    label,
    marks_of,
    panels_for,
    passed_over,
    place,
    values_of,
)
from megads.monitor.plots.source import Run
from megads.monitor.plots.thin import Thin, thin

FAR = 30.0  # times the median: from there on a logarithmic scale
SPARSE = "valid_loss"  # keys that begin so: points of their own, which no hole divides
COLOURS = (
    "#2f6fde",
    "#e0701a",
    "#16966a",
    "#c43f8f",
    "#8a63d2",
    "#b08500",
    "#1497ab",
    "#d64545",
    "#6b8a2a",
    "#7a7a80",
)


@dataclass(frozen=True)
class Curve:
    """One line: of which run (its number), which key, and its points."""

    run: int
    key: str
    label: str
    points: Thin

    @property
    def sparse(self) -> bool:
        """Return whether each point gets a dot."""
        return self.key.startswith(SPARSE)


@dataclass(frozen=True)
class Chart:
    """One panel with its curves."""

    panel: Panel
    keys: tuple[str, ...]  # of all curves, in the order of their dashes or colours
    curves: tuple[Curve, ...]
    log: bool


@dataclass(frozen=True)
class Drawing:
    """All that is drawn of ``runs``. Points and marks stand at iterations; ``axes`` says where these are."""

    runs: tuple[Run, ...]
    axis: str
    axes: tuple[dict[str, Column], ...]  # of each run: name of an axis -> its values
    charts: tuple[Chart, ...]
    marks: tuple[dict[str, np.ndarray], ...]
    passed_over: tuple[list[tuple[float, float]], ...]
    smooth: int

    @property
    def shared_axes(self) -> list[str]:
        """Return the axes that all runs have."""
        return [name for name in AXES if all(name in axes for axes in self.axes)]

    def at(self, run: int, iterations: np.ndarray) -> np.ndarray:
        """Return where iterations of a run are on the axis of this drawing."""
        return place(self.axes[run][self.axis], iterations)

    def colour(self, chart: Chart, curve: Curve) -> int:
        """Return the number of a curve's colour: the run's, or the key's where there is one run."""
        return curve.run if len(self.runs) > 1 else chart.keys.index(curve.key)

    def dash(self, chart: Chart, curve: Curve) -> int:
        """Return the number of a curve's dashes: the key's where colours tell runs apart."""
        return chart.keys.index(curve.key) if len(self.runs) > 1 else 0


def draw(
    runs: Sequence[Run], *, keys: Sequence[str] = (), axis: str = "iteration", smooth: int = 1, most: int
) -> Drawing:
    """Return what to draw of ``runs``.

    Args:
        runs: with their columns.
        keys: panels or keys; empty: whatever there is.
        axis: one of :data:`AXES`.
        smooth: rows whose mean a line shows.
        most: points of a curve that stand for several rows.

    Raises:
        ConfigError: a run has no such axis, or none has such a key.
    """
    columns = [run.columns for run in runs]
    axes = tuple(_axes_of(each) for each in columns)
    for run, own in zip(runs, axes, strict=True):
        if axis not in own:
            raise ConfigError(f"{run.path}: no {AXES[axis][1]} in it, so --x {axis} is not known; --x iteration is")
    charts = []
    for panel, of_panel in panels_for(columns, keys):
        curves = [
            Curve(number, key, label(key), _points(run, panel, key, most, smooth))
            for number, run in enumerate(columns)
            for key in of_panel
            if key in run
        ]
        charts.append(Chart(panel, tuple(of_panel), tuple(curves), panel.spiky and _stands_out(curves)))
    if not charts:
        raise ConfigError(f"{runs[0].path}: nothing to draw in it; rows with lm_loss come with the first step")
    return Drawing(
        tuple(runs),
        axis,
        axes,
        tuple(charts),
        tuple(marks_of(each) for each in columns),
        tuple(passed_over(each) for each in columns),
        smooth,
    )


def _axes_of(run: Columns) -> dict[str, Column]:
    return {name: axis for name in AXES if (axis := axis_of(run, name)) is not None}


def _points(run: Columns, panel: Panel, key: str, most: int, smooth: int) -> Thin:
    sparse = key.startswith(SPARSE)
    column = values_of(run, panel, key)
    return thin(column.numbers() if sparse else column, most, 1 if sparse or panel.exact else smooth, holes=not sparse)


def _stands_out(curves: Sequence[Curve]) -> bool:
    tops = np.concatenate([_finite(each.points.y if each.points.high is None else each.points.high) for each in curves])
    lows = np.concatenate([_finite(each.points.y if each.points.low is None else each.points.low) for each in curves])
    return bool(len(tops) and lows.min() > 0 and tops.max() > FAR * np.median(tops))


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
