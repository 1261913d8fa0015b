"""The charts of one or several runs as a PNG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megads.monitor.plots.drawing import Chart, Curve, Drawing
from megads.monitor.plots.panels import AXES
from megads.monitor.plots.style import (
    BAND,
    COLOURS,
    LABEL,
    QUIET,
    ROW_INCHES,
    add_axes,
    draw_heading,
    heading_inches,
    legend_columns,
    new_figure,
    polish,
    set_ticks,
    text_inches,
)

WIDTH, LEFT, RIGHT, VALUES = 7.0, 0.72, 0.2, 0.55  # inches: of a chart, left of it, right of it, for last values
HEIGHT, LARGE, BAR = 2.2, 3.1, 0.34  # inches: of the axes of a chart, of a large one, of one run's bar
BELOW, NAME_BELOW = 0.34, 0.2  # inches: tick labels, and the name of the axis
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MARKS = {"skipped": ("#d64545", "v"), "rejected": ("#b08500", "x"), "rolled back": ("#8a63d2", "<")}
MARK_NAMES = {"skipped": "step skipped", "rejected": "step rejected", "rolled back": "rolled back"}
MARKED = ("loss", "lm_loss", "grad_norm", "loss_scale")
SKIPPED_DATA = "data skipped"
MOST_NAMES = 12  # of runs in the legend
MOST_TICKS = 7
SHOWN_SHARE = 6.0  # percent of a bar that has room for its number
Entries = list[tuple[Any, str]]


@dataclass(frozen=True)
class _Row:
    """Charts next to each other: the numbers of inches of their axes and of what is above and below these."""

    charts: tuple[Chart, ...]
    width: float
    above: float
    height: float
    below: float


def save_picture(drawing: Drawing, path: Path) -> None:
    """Draw all charts into the PNG file ``path``: the large ones first, then two next to each other.

    Raises:
        OSError: the file cannot be written.
    """
    render(drawing).savefig(path, pil_kwargs={"compress_level": 3})


def render(drawing: Drawing) -> Any:
    """Return the figure of all charts."""
    alone = len(drawing.charts) == 1
    across = WIDTH if alone else 2 * WIDTH
    figure = new_figure(across, 1.0)
    rows = [_row(figure, drawing, charts, across / len(charts)) for charts in _in_rows(drawing)]
    head = 0.0 if alone and len(drawing.runs) == 1 else 0.34 + ROW_INCHES * _run_rows(figure, drawing, across)
    note = _note(drawing)
    foot = 0.2 if note else 0.05
    foot += NAME_BELOW
    figure.set_size_inches(across, head + sum(row.above + row.height + row.below for row in rows) + foot)
    top = head
    for number, row in enumerate(rows):
        for place, chart in enumerate(row.charts):
            own = _height(drawing, chart)
            wide = row.width - LEFT - _right(chart)
            axes = add_axes(figure, place * row.width + LEFT, top + row.above, wide, own)
            _draw(axes, drawing, chart, named=number == len(rows) - 1, alone=alone)
        top += row.above + row.height + row.below
    _head(figure, drawing, alone=alone)
    figure.text(0.995, 0.04 / figure.get_size_inches()[1], note, ha="right", va="bottom", fontsize=7, color=QUIET)
    return figure


def _in_rows(drawing: Drawing) -> list[list[Chart]]:
    large = [chart for chart in drawing.charts if chart.panel.large]
    others = [chart for chart in drawing.charts if not chart.panel.large]
    rows = [large[i : i + 2] for i in range(0, len(large), 2)]
    halves = [others[i : i + 2] for i in range(0, len(others), 2)]
    return [*rows, *halves]


def _row(figure: Any, drawing: Drawing, charts: Sequence[Chart], width: float) -> _Row:
    # One small chart at the end is as wide as those above it.
    width = min(width, WIDTH) if not charts[0].panel.large else width
    names = [[name for _, name in _entries(drawing, chart)] for chart in charts]
    above = [
        heading_inches(figure, each, width - LEFT - _right(chart)) for each, chart in zip(names, charts, strict=True)
    ]
    height = max(_height(drawing, chart) for chart in charts)
    return _Row(tuple(charts), width, max(above) + 0.08, height, BELOW)


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


def _run_entries(drawing: Drawing) -> Entries:
    from matplotlib.lines import Line2D

    names = [run.name for run in drawing.runs]
    if len(names) < 2:
        return []
    shown = names[:MOST_NAMES]
    if len(names) > MOST_NAMES:
        shown = [*shown[:-1], f"{shown[-1]} and {len(names) - MOST_NAMES} more"]
    return [(Line2D([], [], color=COLOURS[i % len(COLOURS)], lw=2.5), name) for i, name in enumerate(shown)]


def _run_rows(figure: Any, drawing: Drawing, across: float) -> int:
    names = [name for _, name in _run_entries(drawing)]
    return math.ceil(len(names) / legend_columns(figure, names, across - LEFT - RIGHT)) if names else 0


def _head(figure: Any, drawing: Drawing, *, alone: bool) -> None:
    """Write the title: the run's name, or a legend of them."""
    across, down = figure.get_size_inches()
    entries = _run_entries(drawing)
    title = f"{len(entries)} runs" if entries else drawing.runs[0].name
    if not (alone and not entries):
        place = {"ha": "left", "va": "center", "fontsize": 12, "weight": "bold"}
        figure.text(LEFT / across, 1 - 0.17 / down, title, **place)
    if entries:
        names = [name for _, name in entries]
        figure.legend(
            [handle for handle, _ in entries],
            names,
            loc="upper left",
            bbox_to_anchor=(LEFT / across, 1 - 0.32 / down),
            ncols=legend_columns(figure, names, across - LEFT - RIGHT),
            **{"frameon": False, "fontsize": LABEL, "borderaxespad": 0.0, "borderpad": 0.0},
            **{"labelspacing": ROW_INCHES * 72 / LABEL - 1.25, "handlelength": 2.4, "columnspacing": 1.4},
        )


def _draw(axes: Any, drawing: Drawing, chart: Chart, *, named: bool, alone: bool) -> None:
    unit = f" ({chart.panel.unit})" if chart.panel.unit else ""
    before = f"{drawing.runs[0].name}: " if alone and len(drawing.runs) == 1 else ""
    polish(axes, grid=not chart.bars)
    if chart.bars:
        _draw_bars(axes, drawing, chart)
    else:
        _draw_curves(axes, drawing, chart)
        _limits(axes, drawing, chart)
        set_ticks(axes.yaxis, MOST_TICKS, log=chart.log, whole=chart.panel.whole)
        set_ticks(axes.xaxis, MOST_TICKS, whole=drawing.axis == "iteration")
        _draw_marks(axes, drawing, chart)
        if chart.panel.large:
            _last_values(axes, drawing, chart)
        if named:
            axes.set_xlabel(AXES[drawing.axis][0], fontsize=8.5, labelpad=2)
    draw_heading(axes, f"{before}{chart.panel.title}{unit}", _entries(drawing, chart))


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
        style: dict[str, Any] = {"color": colour, "lw": 1.1 + 2.2 * behind, "zorder": 2.0}
        style["ls"] = DASHES[drawing.dash(chart, curve) % len(DASHES)]
        if curve.sparse and len(x) < 80:
            style |= {"marker": "o", "ms": 3.5 + 1.5 * behind, "zorder": 2.5}
        elif np.isfinite(points.y).sum() == 1:
            style |= {"marker": "o", "ms": 3}
        axes.plot(x, points.y, **style)


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
    names = [_cut(axes.figure, run.name, LEFT - 0.15) for run in drawing.runs]
    axes.set_yticks(places, labels=names if len(names) > 1 else [""], fontsize=7.5)
    axes.set_xlim(0, max(100.0, float(left.max())))
    axes.set_ylim(-0.6, len(places) - 0.4)
    set_ticks(axes.xaxis, MOST_TICKS)


def _cut(figure: Any, name: str, width: float) -> str:
    """Return a name, cut to ``width`` inches."""
    ends = range(len(name), 0, -1)
    texts = (name[:end] + (".." if end < len(name) else "") for end in ends)
    return next((text for text in texts if text_inches(figure, text, LABEL) <= width), "")


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
    values = np.concatenate([part for curve in chart.curves for part in _parts(curve)])
    values = values[np.isfinite(values)]
    if not len(values):
        axes.set_ylim(0, 1)
    elif not chart.log and np.ptp(values) <= 1e-6 * abs(float(values[0])):
        value = float(values[0])
        axes.set_ylim(min(0.0, 1.3 * value), max(0.0, 1.3 * value) or 1.0 if value >= 0 else 0.0)


def _parts(curve: Curve) -> list[np.ndarray]:
    points = curve.points
    return [part for part in (points.y, points.low, points.high) if part is not None]


def _last_values(axes: Any, drawing: Drawing, chart: Chart) -> None:
    """Write the last value of each curve at its right, none over another; none at all where there are too many."""
    figure, box = axes.figure, axes.get_position()
    height = box.height * figure.get_size_inches()[1]
    step = 0.125 / height
    known = [curve for curve in chart.curves if math.isfinite(curve.last)]
    if not known or len(known) * step > 1:
        return
    at = [(_fraction(axes, curve.last), curve) for curve in known]
    at.sort(key=lambda each: each[0])
    places: list[float] = []
    for place, _ in at:
        places.append(max(place, places[-1] + step) if places else max(place, step / 2))
    if places[-1] > 1 - step / 2:  # pushed out at the top: down again from there
        places[-1] = 1 - step / 2
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - step)
    for place, (_, curve) in zip(places, at, strict=True):
        colour = COLOURS[drawing.colour(chart, curve) % len(COLOURS)]
        text = f"{curve.last:.4f}" if abs(curve.last) < 1000 else f"{curve.last:.4g}"
        axes.text(1.008, place, text, transform=axes.transAxes, fontsize=LABEL, color=colour, va="center")


def _fraction(axes: Any, value: float) -> float:
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        value, low, high = (math.log(max(each, 1e-300)) for each in (value, low, high))
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _draw_marks(axes: Any, drawing: Drawing, chart: Chart) -> None:
    for run, ranges in enumerate(drawing.passed_over):
        for span in ranges:
            first, last = drawing.at(run, np.array(span))
            axes.axvspan(first, last, color=BAND, alpha=0.18, lw=0)
    if chart.panel.name not in MARKED:
        return
    for run, marks in enumerate(drawing.marks):
        for name, iterations in marks.items():
            colour, marker = MARKS[name]
            x = drawing.at(run, iterations)
            at_top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(x, np.full(len(x), 1.0), marker, color=colour, ms=4.5, ls="", **at_top)


def _entries(drawing: Drawing, chart: Chart) -> Entries:
    """Return the legend of a chart: handle and name."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    by_key = len(drawing.runs) == 1 or bool(chart.bars)
    entries: Entries = []
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
    if any(drawing.passed_over) and (chart.panel.large or chart.panel.name in MARKED):
        entries.append((Patch(color=BAND, alpha=0.3, lw=0), SKIPPED_DATA))
    return entries
