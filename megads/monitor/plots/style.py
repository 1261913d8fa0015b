"""The look of every picture: colours, fonts, ticks, and a heading whose texts never lie over each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

COLOURS = (
    *("#2f6fde", "#e0701a", "#16966a", "#c43f8f", "#8a63d2"),
    *("#b08500", "#1497ab", "#d64545", "#6b8a2a", "#7a7a80"),
)
DPI = 110
QUIET = "#666666"  # notes
BAND = "#888888"
TITLE, LABEL, TICK = 9.5, 7.5, 8.0  # points
TITLE_INCHES, ROW_INCHES, GAP_INCHES = 0.24, 0.17, 0.1  # of a heading: title, row of the legend, above the axes
HANDLE, BETWEEN = 2.4, 1.4  # of a legend, in letters
Entries = Sequence[tuple[Any, str]]  # of a legend: handle and name
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LETTERS = ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from where on, the unit, its letter
SMALL = 1e-3  # below: as 3e-4


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


def text_inches(figure: Any, text: str, points: float) -> float:
    """Return how wide a text is."""
    from matplotlib.font_manager import FontProperties

    font = FontProperties(size=points)
    width, _, _ = figure.canvas.get_renderer().get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


def legend_columns(figure: Any, entries: Entries, width: float) -> int:
    """Return into how many columns a legend goes that is at most ``width`` inches wide."""
    more = (HANDLE + 0.8 + BETWEEN) * LABEL / 72
    each = [text_inches(figure, name, LABEL) + more for _, name in entries]
    for columns in range(len(each), 1, -1):
        # matplotlib fills column by column, the first ones with one more.
        parts = np.array_split(each, columns)
        if sum(part.max() for part in parts) <= width:
            return columns
    return 1


def legend_rows(figure: Any, entries: Entries, width: float) -> int:
    """Return the rows of a legend that is at most ``width`` inches wide."""
    return math.ceil(len(entries) / legend_columns(figure, entries, width))


def heading_inches(figure: Any, entries: Entries, width: float) -> float:
    """Return how high the heading of axes of ``width`` inches is whose legend has ``entries``."""
    return TITLE_INCHES + legend_rows(figure, entries, width) * ROW_INCHES + GAP_INCHES


def draw_heading(axes: Any, title: str, entries: Entries) -> None:
    """Write a title above the axes, and between both a legend."""
    across, down = axes.figure.get_size_inches()
    box = axes.get_position()
    width, height = box.width * across, box.height * down
    above = heading_inches(axes.figure, entries, width) - TITLE_INCHES
    axes.text(0.0, 1 + above / height, title, transform=axes.transAxes, fontsize=TITLE, va="bottom", ha="left")
    add_legend(axes, entries, width, loc="lower left", bbox_to_anchor=(0.0, 1 + GAP_INCHES / height))


def add_legend(target: Any, entries: Entries, width: float, **place: Any) -> None:
    """Add a legend, at most ``width`` inches wide, to axes or a figure, unless it is empty."""
    if entries:
        columns = legend_columns(target.figure, entries, width)
        target.legend(
            *zip(*entries, strict=True),
            **{"ncols": columns, "fontsize": LABEL, "frameon": False, "borderaxespad": 0.0, "borderpad": 0.0},
            **{"labelspacing": ROW_INCHES * 72 / LABEL - 1.25, "handlelength": HANDLE, "columnspacing": BETWEEN},
            **place,
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


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` + 1 round values from ``low`` to ``high``, at equal distances."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in STEPS if each * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values between two positive ones for a logarithmic axis."""
    within = (1, 2, 5) if high / low < 30 else (1, 3) if high / low < 300 else (1,)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    found = [each * 10.0**power for power in powers for each in within if low <= each * 10.0**power <= high]
    if len(found) < 2:
        return [value for value in round_ticks(low, high, 4) if value > 0]
    return found[:: -(-len(found) // most)]


def tick_labels(values: Sequence[float], *, log: bool = False) -> list[str]:
    """Return the values as text, all of one kind: with one letter, with one exponent, or with equally many decimals.

    On a logarithmic axis each value stands for itself.
    """
    if log and values and min(values) < SMALL:
        return [f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") for value in values]
    if log:
        return [_alone(value) for value in values]
    most = max((abs(value) for value in values), default=0.0)
    unit, letter = _unit(most)
    if letter:
        return _alike([value / unit for value in values], letter)
    if 0 < most < SMALL:
        power = math.floor(math.log10(most) + 1e-9)
        return _alike([value / 10.0**power for value in values], f"e{power}")
    return _alike(values, "")


def _alike(values: Sequence[float], end: str) -> list[str]:
    decimals = next((n for n in range(7) if all(abs(value - round(value, n)) < 1e-7 for value in values)), 6)
    return ["0" if value == 0 and end else f"{value:.{decimals}f}{end}" for value in values]


def _alone(value: float) -> str:
    unit, letter = _unit(abs(value))
    return f"{value / unit:.4g}{letter}"


def _unit(size: float) -> tuple[float, str]:
    return next(((unit, letter) for least, unit, letter in LETTERS if size >= least), (1.0, ""))
