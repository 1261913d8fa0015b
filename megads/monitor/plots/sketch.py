"""Curves as text for a terminal, without colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megads.monitor.plots.columns import Column, Columns
from megads.monitor.plots.drawing import Chart, Drawing
from megads.monitor.plots.panels import AXES
from megads.monitor.plots.thin import Thin, thin

Sketched = Sequence[tuple[str, np.ndarray, np.ndarray, bool]]  # name, x, y, whether these are single points


def loss_sketch(columns: Columns, width: int = 72, height: int = 14) -> str:
    """Return training and validation loss as text for a terminal, no colours."""
    lines = []
    for key, name in (("lm_loss", "training"), ("valid_loss", "validation")):
        if key in columns and len((column := columns[key].numbers()).x):
            lines.append((name, *_dots(_few(column, width)), key == "valid_loss" and len(column.x) < width))
    return sketch(lines, "iteration", width, height)


def chart_sketch(drawing: Drawing, chart: Chart, width: int = 72, height: int = 14) -> str:
    """Return a chart as text, its title above it."""
    several, lines = len(drawing.runs) > 1, []
    for curve in chart.curves:
        parts = [drawing.runs[curve.run].name] if several else []
        parts += [curve.label] if len(chart.keys) > 1 or not several else []
        points = curve.points
        at = Thin(drawing.at(curve.run, points.x), points.y, points.low, points.high, points.size)
        lines.append((" ".join(parts), *_dots(at), curve.sparse and len(points.x) < width))
    unit = f" ({chart.panel.unit})" if chart.panel.unit else ""
    log = ", logarithmic" if chart.log else ""
    return f"{chart.panel.title}{unit}{log}\n{sketch(lines, AXES[drawing.axis][0], width, height, log=chart.log)}"


def _few(column: Column, width: int) -> Thin:
    return thin(column, 2 * width, holes=False)


def _dots(points: Thin) -> tuple[np.ndarray, np.ndarray]:
    """Return a line through the points, by way of the extremes of those whose rows lie far apart."""
    x, y = points.x, points.y
    if points.low is not None and points.high is not None:
        outside = points.standing_out()
        ends = np.stack([points.low[outside], points.high[outside]], 1).ravel()
        x, y = np.insert(x, np.repeat(outside, 2), np.repeat(x[outside], 2)), np.insert(y, np.repeat(outside, 2), ends)
    kept = np.isfinite(y)
    return x[kept], y[kept]


def sketch(lines: Sketched, xlabel: str, width: int, height: int, *, log: bool = False) -> str:
    """Return lines as text of ``width`` by ``height`` characters."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    if log:
        plotext.yscale("log")
    for number, (name, x, y, single) in enumerate(line for line in lines if len(line[1])):
        # One run is drawn with fine dots; of several each has a letter, since there are no colours.
        marker = (
            "o"
            if single
            else "braille"
            if len(lines) == 1 or number == 0
            else "abcdefghijklmnopqrstuvwxyz"[number % 26]
        )
        drawn = plotext.scatter if single else plotext.plot
        drawn(x.tolist(), y.tolist(), label=name, marker=marker)
    plotext.xlabel(xlabel)
    text: str = plotext.uncolorize(plotext.build())
    return text
