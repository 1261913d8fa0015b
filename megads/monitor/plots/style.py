"""The look of every picture: colours, fonts, ticks, and a heading whose texts never lie over each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from megads.monitor.plots.ticks import log_ticks, round_ticks, tick_labels

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
DPI = 110
QUIET = "#666666"  # notes
BAND = "#888888"
TITLE, LABEL, TICK = 9.5, 7.5, 8.0  # points
TITLE_INCHES, ROW_INCHES, GAP_INCHES = 0.24, 0.17, 0.1  # of a heading: title, row of the legend, above the axes
HANDLE, BETWEEN = 2.4, 1.4  # of a legend, in letters


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of ``width`` by ``height`` inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Return axes at a place in inches from the figure's left and top."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def text_inches(figure: Any, text: str, points: float, *, bold: bool = False) -> float:
    """Return how wide a text is."""
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=points, weight="bold" if bold else "normal")
    width, _, _ = figure.canvas.get_renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


def legend_columns(figure: Any, names: Sequence[str], width: float) -> int:
    """Return into how many columns a legend goes that is at most ``width`` inches wide, 0 for no names."""
    if not names:
        return 0
    more = (HANDLE + 0.8 + BETWEEN) * LABEL / 72
    each = [text_inches(figure, name, LABEL) + more for name in names]
    for columns in range(len(names), 1, -1):
        # matplotlib fills column by column, the first ones with one more.
        rows, longer = divmod(len(names), columns)
        ends = [rows + (number < longer) for number in range(columns)]
        starts = [sum(ends[:number]) for number in range(columns)]
        if sum(max(each[start : start + count]) for start, count in zip(starts, ends, strict=True)) <= width:
            return columns
    return 1


def heading_inches(figure: Any, names: Sequence[str], width: float) -> float:
    """Return how high the heading of axes of ``width`` inches is whose legend has ``names``."""
    columns = legend_columns(figure, names, width)
    rows = math.ceil(len(names) / columns) if columns else 0
    return TITLE_INCHES + rows * ROW_INCHES + GAP_INCHES


def draw_heading(axes: Any, title: str, entries: Sequence[tuple[Any, str]]) -> None:
    """Write a title above the axes, and between both a legend of ``entries``: handle and name."""
    figure = axes.figure
    across, down = figure.get_size_inches()
    box = axes.get_position()
    width, height = box.width * across, box.height * down
    names = [name for _, name in entries]
    columns = legend_columns(figure, names, width)
    rows = math.ceil(len(names) / columns) if columns else 0
    above = GAP_INCHES + rows * ROW_INCHES
    axes.text(0.0, 1 + above / height, title, transform=axes.transAxes, fontsize=TITLE, va="bottom", ha="left")
    if entries:
        axes.legend(
            [handle for handle, _ in entries],
            names,
            loc="lower left",
            bbox_to_anchor=(0.0, 1 + GAP_INCHES / height),
            borderaxespad=0.0,
            borderpad=0.0,
            labelspacing=ROW_INCHES * 72 / LABEL - 1.25,
            ncols=columns,
            fontsize=LABEL,
            frameon=False,
            handlelength=HANDLE,
            columnspacing=BETWEEN,
        )


def polish(axes: Any, *, grid: bool = True) -> None:
    """Give axes the look of all pictures."""
    if grid:
        axes.grid(alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TICK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def set_ticks(axis: Any, most: int, *, log: bool = False, whole: bool = False) -> None:
    """Put round ticks with labels of one kind on the axis of axes whose limits are known.

    Args:
        axis: x or y axis.
        most: ticks.
        log: whether it is logarithmic.
        whole: whether there is nothing between whole numbers.
    """
    low, high = sorted(axis.get_view_interval())
    values = log_ticks(low, high, most) if log else round_ticks(low, high, most)
    if whole and not log and any(value != round(value) for value in values):
        values = [float(value) for value in range(math.ceil(low), math.floor(high) + 1)]
    axis.set_ticks(values, labels=tick_labels(values, log=log))
    axis.set_ticks([], minor=True)
