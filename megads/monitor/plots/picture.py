"""The charts of one or several runs as a PNG file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from megads.monitor.columns import Columns
from megads.monitor.plots import style
from megads.monitor.plots.drawing import Chart, Curve, Drawing, draw
from megads.monitor.plots.panels import AXES
from megads.monitor.plots.source import Run
from megads.monitor.plots.style import COLOURS, LABEL

WIDTH, LEFT, RIGHT, VALUES = 7.0, 0.72, 0.2, 0.55  # inches: of a chart, left of it, right of it, for last values
HEIGHT, LARGE, BAR = 2.2, 3.1, 0.34  # inches: of the axes of a chart, of a large one, of one run's bar
ABOVE, BELOW, NAME_BELOW = 0.08, 0.34, 0.2  # inches: above a heading, tick labels, the name of the axis
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MARKS = {
    "skipped": ("#d64545", "v"),
    "rejected": ("#b08500", "x"),
    "rolled back": ("#8a63d2", "<"),
    "branch": ("#1f8a70", "d"),
}
MARK_NAMES = {
    "skipped": "step skipped",
    "rejected": "step rejected",
    "rolled back": "rolled back",
    "branch": "branch point",
}
MARKED = ("loss", "lm_loss", "grad_norm", "loss_scale")
MOST_NAMES = 12  # of runs in the legend
MOST_TICKS = 7
SHOWN_SHARE = 6.0  # percent of a bar that has room for its number


def save_picture(drawing: Drawing, path: Path) -> None:
    """Draw all charts into the PNG file ``path``: the large ones first, then two next to each other.

    Raises:
        OSError: the file cannot be written.
    """
    render(drawing).savefig(path, pil_kwargs={"compress_level": 3})


def save_loss_plot(columns: Columns, path: Path, title: str) -> None:
    """Draw training and validation loss over iterations into ``path``, a PNG file."""
    save_picture(draw([Run(title, path, columns)], keys=["loss"], most=1500), path)


def render(drawing: Drawing) -> Any:
    """Return the figure of all charts."""
    alone = len(drawing.charts) == 1
    across = WIDTH if alone else 2 * WIDTH
    figure = style.new_figure(across, 1.0)
    by_size = [[chart for chart in drawing.charts if chart.panel.large == large] for large in (True, False)]
    rows = [charts[i : i + 2] for charts in by_size for i in range(0, len(charts), 2)]
    # One small chart at the end is as wide as those above it.
    widths = [across / len(row) if row[0].panel.large else WIDTH for row in rows]
    heads = [
        max(style.heading_inches(figure, _entries(drawing, chart), width - LEFT - _right(chart)) for chart in row)
        for row, width in zip(rows, widths, strict=True)
    ]
    heights = [max(_height(drawing, chart) for chart in row) for row in rows]
    title, entries = _title(drawing)
    title_height = 0.34 + style.ROW_INCHES * style.legend_rows(figure, entries, across - LEFT - RIGHT)
    top = title_height if entries or not alone else 0.0
    note = _note(drawing)
    down = top + sum(heads) + sum(heights) + (ABOVE + BELOW) * len(rows) + NAME_BELOW + (0.2 if note else 0.05)
    figure.set_size_inches(across, down)
    if top:
        figure.text(LEFT / across, 1 - 0.17 / down, title, ha="left", va="center", fontsize=12, weight="bold")
    place = (LEFT / across, 1 - 0.32 / down)
    style.add_legend(figure, entries, across - LEFT - RIGHT, loc="upper left", bbox_to_anchor=place)
    for row, width, head, height in zip(rows, widths, heads, heights, strict=True):
        top += head + ABOVE
        for column, chart in enumerate(row):
            across_axes = width - LEFT - _right(chart)
            axes = style.add_axes(figure, column * width + LEFT, top, across_axes, _height(drawing, chart))
            _draw(axes, drawing, chart, named=row is rows[-1], alone=alone)
        top += height + BELOW
    figure.text(0.995, 0.04 / down, note, ha="right", va="bottom", fontsize=7, color=style.QUIET)
    return figure


def _height(drawing: Drawing, chart: Chart) -> float:
    if chart.bars:
        return min(HEIGHT, BAR * len(drawing.runs) + 0.1)
    return LARGE if chart.panel.large else HEIGHT


def _right(chart: Chart) -> float:
    return VALUES if chart.panel.large else RIGHT


def _note(drawing: Drawing) -> str:
    size = max((curve.points.size for chart in drawing.charts for curve in chart.curves), default=1)
    if drawing.smooth > 1:
        return f"line: centred mean of {drawing.smooth} rows; pale: lowest and highest"
    return f"line: mean of up to {size} rows; pale: lowest and highest" if size > 1 else ""


def _title(drawing: Drawing) -> tuple[str, style.Entries]:
    """Return the title, and the legend of several runs."""
    names = [run.name for run in drawing.runs]
    if len(names) < 2:
        return names[0], []
    shown = names[:MOST_NAMES]
    if len(names) > MOST_NAMES:
        shown = [*shown[:-1], f"{shown[-1]} and {len(names) - MOST_NAMES} more"]
    entries = [(Line2D([], [], color=COLOURS[i % len(COLOURS)], lw=2.5), name) for i, name in enumerate(shown)]
    return f"{len(entries)} runs", entries


def _draw(axes: Any, drawing: Drawing, chart: Chart, *, named: bool, alone: bool) -> None:
    unit = f" ({chart.panel.unit})" if chart.panel.unit else ""
    before = f"{drawing.runs[0].name}: " if alone and len(drawing.runs) == 1 else ""
    style.polish(axes, grid=not chart.bars)
    if chart.bars:
        _draw_bars(axes, drawing, chart)
    else:
        _draw_curves(axes, drawing, chart)
        _limits(axes, drawing, chart)
        style.set_ticks(axes.yaxis, MOST_TICKS, log=chart.log, whole=chart.panel.whole)
        style.set_ticks(axes.xaxis, MOST_TICKS, whole=drawing.axis == "iteration")
        _draw_marks(axes, drawing, chart)
        if chart.panel.large:
            _last_values(axes, drawing, chart)
        if named:
            axes.set_xlabel(AXES[drawing.axis][0], fontsize=8.5, labelpad=2)
    style.draw_heading(axes, f"{before}{chart.panel.title}{unit}", _entries(drawing, chart))


def _draw_curves(axes: Any, drawing: Drawing, chart: Chart) -> None:
    for curve in chart.curves:
        _draw_extremes(axes, drawing, chart, curve)
    for curve in chart.curves:
        colour = COLOURS[drawing.colour(chart, curve) % len(COLOURS)]
        points, x = curve.points, drawing.at(curve.run, curve.points.x)
        if curve.base is not None:
            axes.fill_between(x, curve.base, points.y, color=colour, alpha=0.75, lw=0)
            continue
        # Equal curves lie in each other: the lower ones are broader.
        behind = drawing.behind(chart, curve)
        look: dict[str, Any] = {"color": colour, "lw": 1.1 + 2.2 * behind, "zorder": 2.0}
        if curve.sparse and len(x) < 80:
            look |= {"marker": "o", "ms": 3.5 + 1.5 * behind, "zorder": 2.5}
        elif np.isfinite(points.y).sum() == 1:
            look |= {"marker": "o", "ms": 3}
        axes.plot(x, points.y, ls=DASHES[drawing.dash(chart, curve) % len(DASHES)], **look)


def _draw_extremes(axes: Any, drawing: Drawing, chart: Chart, curve: Curve) -> None:
    """Draw the rows behind the line: pale from the lowest to the highest, in full where one stands out."""
    points = curve.points
    if points.low is None or points.high is None:
        return
    colour, x = COLOURS[drawing.colour(chart, curve) % len(COLOURS)], drawing.at(curve.run, points.x)
    pale = 0.3 if len(drawing.runs) == 1 else 0.18
    if points.size == 1:
        axes.plot(x, points.low, color=colour, alpha=pale, lw=0.6)
        return
    outside = points.standing_out()
    usual = np.setdiff1d(np.arange(len(x)), outside)
    for which, alpha, lw in ((usual, pale, 0.9), (outside, 0.9, 1.0)):
        axes.vlines(x[which], points.low[which], points.high[which], color=colour, alpha=alpha, lw=lw)


def _draw_bars(axes: Any, drawing: Drawing, chart: Chart) -> None:
    """Draw one stacked bar per run, the first run on top."""
    places = np.arange(len(drawing.runs))[::-1]
    left = np.zeros(len(places))
    for number, key in enumerate(chart.keys):
        widths = np.array([bar[number] for bar in chart.bars])
        colour = COLOURS[chart.key_colour(key) % len(COLOURS)]
        axes.barh(places, widths, left=left, height=0.7, color=colour, alpha=0.8)
        for place, start, width in zip(places, left, widths, strict=True):
            if width >= SHOWN_SHARE:
                words = {"ha": "center", "va": "center", "fontsize": 7, "color": "white"}
                axes.text(start + width / 2, place, f"{width:.0f}%", **words)
        left = left + widths
    names = [_shortened(axes.figure, run.name, LEFT - 0.15) for run in drawing.runs]
    axes.set_yticks(places, labels=names if len(names) > 1 else [""], fontsize=7.5)
    axes.set_xlim(0, max(100.0, float(left.max())))
    axes.set_ylim(-0.6, len(places) - 0.4)
    style.set_ticks(axes.xaxis, MOST_TICKS)


def _shortened(figure: Any, name: str, width: float) -> str:
    """Return a name, shortened to ``width`` inches."""
    texts = [name, *(f"{name[:end]}.." for end in range(len(name) - 1, 0, -1))]
    return next((text for text in texts if style.text_inches(figure, text, LABEL) <= width), "")


def _limits(axes: Any, drawing: Drawing, chart: Chart) -> None:
    """Set the limits of both axes; values that never change get an axis from 0."""
    axes.margins(x=0.01)
    if chart.log:
        axes.set_yscale("log")
    x = [drawing.at(curve.run, curve.points.x) for curve in chart.curves]
    if len(np.unique(np.concatenate(x))) == 1:
        axes.set_xlim(x[0][0] - 1, x[0][0] + 1)
    if chart.panel.stacked:
        axes.set_ylim(0, 100)
        return
    points = [curve.points for curve in chart.curves]
    parts = [part for each in points for part in (each.y, each.low, each.high) if part is not None]
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if not len(values):
        axes.set_ylim(0, 1)
    elif not chart.log and np.ptp(values) <= 1e-6 * abs(float(values[0])):
        value = float(values[0])
        axes.set_ylim(min(0.0, 1.3 * value), max(0.0, 1.3 * value) or 1.0 if value >= 0 else 0.0)


def _last_values(axes: Any, drawing: Drawing, chart: Chart) -> None:
    """Write the last value of each curve at its right, none over another; none at all where there are too many."""
    figure, box = axes.figure, axes.get_position()
    height = box.height * figure.get_size_inches()[1]
    step = 0.125 / height
    known = [curve for curve in chart.curves if math.isfinite(curve.last)]
    if not known or len(known) * step > 1:
        return
    known.sort(key=lambda curve: curve.last)
    to_axes = axes.transData + axes.transAxes.inverted()
    places = np.clip([to_axes.transform((1.0, curve.last))[1] for curve in known], 0, 1)
    shifts = step * np.arange(len(known))  # up past the one below, and down again from the top
    places = np.maximum.accumulate(np.maximum(places, step / 2) - shifts)
    places = np.minimum(places, 1 - step / 2 - shifts[-1]) + shifts
    for place, curve in zip(places, known, strict=True):
        colour = COLOURS[drawing.colour(chart, curve) % len(COLOURS)]
        text = f"{curve.last:.4f}" if abs(curve.last) < 1000 else f"{curve.last:.4g}"
        axes.text(1.008, place, text, transform=axes.transAxes, fontsize=LABEL, color=colour, va="center")


def _draw_marks(axes: Any, drawing: Drawing, chart: Chart) -> None:
    for run, ranges in enumerate(drawing.skipped_ranges):
        for span in ranges:
            first, last = drawing.at(run, np.array(span))
            axes.axvspan(first, last, color=style.BAND, alpha=0.18, lw=0)
    if chart.panel.name not in MARKED:
        return
    for run, marks in enumerate(drawing.marks):
        for name, iterations in marks.items():
            colour, marker = MARKS[name]
            x = drawing.at(run, iterations)
            at_top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(x, np.full(len(x), 1.0), marker, color=colour, ms=4.5, ls="", **at_top)


def _entries(drawing: Drawing, chart: Chart) -> list[tuple[Any, str]]:
    """Return the legend of a chart: handle and name."""
    by_key = len(drawing.runs) == 1 or bool(chart.bars)
    entries: list[tuple[Any, str]] = []
    for key, name in zip(chart.keys, chart.labels, strict=True) if len(chart.keys) > 1 else ():
        colour = COLOURS[chart.key_colour(key) % len(COLOURS)] if by_key else "#555555"
        curve = next((each for each in chart.curves if each.key == key), None)
        if curve is None or curve.base is not None:
            entries.append((Patch(color=colour, alpha=0.8, lw=0), name))
        else:
            dashes = DASHES[drawing.dash(chart, curve) % len(DASHES)]
            look: dict[str, Any] = {"marker": "o" if curve.sparse else "", "ms": 3, "lw": 1.2}
            entries.append((Line2D([], [], color=colour, ls=dashes, **look), name))
    if chart.panel.name in MARKED:
        for name in dict.fromkeys(name for marks in drawing.marks for name in marks):
            colour, marker = MARKS[name]
            entries.append((Line2D([], [], color=colour, ls="", marker=marker, ms=4.5), MARK_NAMES[name]))
    if any(drawing.skipped_ranges) and (chart.panel.large or chart.panel.name in MARKED):
        entries.append((Patch(color=style.BAND, alpha=0.3, lw=0), "data skipped"))
    return entries
