"""The charts of one or several runs as a PNG file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from megads.monitor.plots.drawing import COLOURS, Chart, Curve, Drawing
from megads.monitor.plots.panels import AXES
from megads.monitor.text import count

WIDTH, HEIGHT, DPI = 7.0, 3.1, 110  # inches of one chart
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
MARKS = {"skipped": ("#d64545", "v"), "rejected": ("#b08500", "x"), "rolled back": ("#8a63d2", "<")}
MOST_NAMES = 12  # in the legend


def save_picture(drawing: Drawing, path: Path) -> None:
    """Draw all charts, two beside each other, into the PNG file ``path``.

    Raises:
        OSError: the file can not be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(2, len(drawing.charts))
    rows = -(-len(drawing.charts) // columns)
    top, bottom = 0.75 + 0.22 * (_names_shown(drawing) > 1), 0.5
    height = rows * HEIGHT + top
    figure = Figure(figsize=(columns * WIDTH, height))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(
        left=0.75 / (columns * WIDTH),
        right=1 - 0.2 / (columns * WIDTH),
        top=1 - top / height,
        bottom=bottom / height,
        hspace=0.36,
        wspace=0.2,
    )
    for number, chart in enumerate(drawing.charts):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, drawing, chart)
        if number >= len(drawing.charts) - columns:
            axes.set_xlabel(AXES[drawing.axis][0])
    _head(figure, drawing, height)
    figure.savefig(path, dpi=DPI, pil_kwargs={"compress_level": 3})


def _names_shown(drawing: Drawing) -> int:
    return min(len(drawing.runs), MOST_NAMES)


def _head(figure: Any, drawing: Drawing, height: float) -> None:
    """Write the title: the run's name, or a legend of them."""
    from matplotlib.lines import Line2D

    names = [run.name for run in drawing.runs]
    note = f"line: mean of {drawing.smooth} rows" if drawing.smooth > 1 else ""
    size = max((curve.points.size for chart in drawing.charts for curve in chart.curves), default=1)
    if size > 1 and not note:
        note = f"line: mean of up to {size} rows"
    note += "; pale: their least and greatest" if note else ""
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    figure.text(0.5, 1 - 0.18 / height, title, ha="center", va="center", fontsize=12, weight="bold")
    figure.text(0.99, 0.05 / height, note, ha="right", va="bottom", fontsize=7, color="#666666")
    if len(names) > 1:
        shown = names[:MOST_NAMES]
        lines = [Line2D([], [], color=COLOURS[number % len(COLOURS)], lw=2) for number in range(len(shown))]
        if len(names) > MOST_NAMES:
            shown = [*shown[:-1], f"{shown[-1]} and {len(names) - MOST_NAMES} more"]
        place = (0.5, 1 - 0.28 / height)
        figure.legend(lines, shown, loc="upper center", bbox_to_anchor=place, ncols=6, frameon=False, fontsize=8)


def _draw(axes: Any, drawing: Drawing, chart: Chart) -> None:
    for curve in chart.curves:
        _draw_curve(axes, drawing, chart, curve)
    if chart.log:
        axes.set_yscale("log")
    unit = f"  ({chart.panel.unit})" if chart.panel.unit else ""
    axes.set_title(f"{chart.panel.title}{unit}", fontsize=9.5, loc="left")
    axes.grid(alpha=0.25, lw=0.6)
    axes.margins(x=0.01)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.xaxis.set_major_formatter(_number)
    if not chart.log:
        axes.yaxis.set_major_formatter(_number)
    _draw_marks(axes, drawing, chart)
    if len(chart.keys) > 1 or chart.panel.name == "grad_norm":
        _legend(axes, drawing, chart)


def _number(value: float, _: int | None = None) -> str:
    return count(value) if abs(value) >= 1e4 else f"{value:.6g}"


def _draw_curve(axes: Any, drawing: Drawing, chart: Chart, curve: Curve) -> None:
    colour = COLOURS[drawing.colour(chart, curve) % len(COLOURS)]
    points, x = curve.points, drawing.at(curve.run, curve.points.x)
    lone = np.isfinite(points.y).sum() == 1
    style: dict[str, Any] = {"color": colour, "lw": 1.1, "ls": DASHES[drawing.dash(chart, curve) % len(DASHES)]}
    if points.low is not None and points.high is not None:
        if points.size > 1:
            outside = points.standing_out()
            usual = np.setdiff1d(np.arange(len(x)), outside)
            for which, alpha, lw in ((usual, 0.3, 0.9), (outside, 0.9, 1.0)):
                axes.vlines(x[which], points.low[which], points.high[which], color=colour, alpha=alpha, lw=lw)
        else:
            axes.plot(x, points.low, color=colour, alpha=0.3, lw=0.6)
    if curve.sparse:
        style |= {"marker": "o" if len(x) < 80 else "", "ms": 3.5, "zorder": 1.5}
    elif lone:
        style |= {"marker": "o", "ms": 3}
    axes.plot(x, points.y, **style)


def _draw_marks(axes: Any, drawing: Drawing, chart: Chart) -> None:
    for run, ranges in enumerate(drawing.passed_over):
        for span in ranges:
            first, last = drawing.at(run, np.array(span))
            axes.axvspan(first, last, color="#888888", alpha=0.15, lw=0)
    if chart.panel.name not in ("loss", "grad_norm", "loss_scale"):
        return
    for run, marks in enumerate(drawing.marks):
        for name, iterations in marks.items():
            colour, marker = MARKS[name]
            x = drawing.at(run, iterations)
            at_top = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(x, np.full(len(x), 1.0), marker, color=colour, ms=4.5, ls="", **at_top)


def _legend(axes: Any, drawing: Drawing, chart: Chart) -> None:
    from matplotlib.lines import Line2D

    several = len(drawing.runs) > 1
    entries: list[tuple[Any, str]] = []
    for number, key in enumerate(chart.keys if len(chart.keys) > 1 else ()):
        colour = "#555555" if several else COLOURS[number % len(COLOURS)]
        curve = next(each for each in chart.curves if each.key == key)
        marker = "o" if curve.sparse else ""
        dashes = DASHES[number % len(DASHES)] if several else "-"
        entries.append((Line2D([], [], color=colour, ls=dashes, marker=marker, ms=3, lw=1.2), curve.label))
    if chart.panel.name in ("loss", "grad_norm"):
        for name in dict.fromkeys(name for marks in drawing.marks for name in marks):
            colour, marker = MARKS[name]
            entries.append((Line2D([], [], color=colour, ls="", marker=marker, ms=4.5), f"step {name}"))
    if entries:
        handles, names = zip(*entries, strict=True)
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.015), "borderaxespad": 0.0}
        axes.legend(
            handles, names, fontsize=7.5, frameon=False, ncols=len(names), columnspacing=1.2, handlelength=2.8, **place
        )
