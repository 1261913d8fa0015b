"""Curves as text for a terminal, without colours: fine dots, round ticks, the legend at the top right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megads.monitor.columns import Columns, read_columns
from megads.monitor.plots.downsample import Points, downsample
from megads.monitor.plots.drawing import Chart, Drawing
from megads.monitor.plots.panels import AXES
from megads.monitor.plots.style import log_ticks, round_ticks, tick_labels

Sketched = Sequence[tuple[str, np.ndarray, np.ndarray, bool]]  # name, x, y, whether these are single points

Scale = Callable[[Any], Any]  # a value, or many -> its place between the ends of the axis, 0 to 1

BRAILLE = 0x2800
DOTS = np.array([(0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80)])  # bit of a dot of a cell, by row and column
LOSSES = {"lm_loss": "training", "valid_loss": "validation"}
LINE, POINT = "\u2500", "\u25cf"
TAGS = "123456789abcdefghijklmnopqrstuvwxyz"
MOST_TAGS = 5  # at the right of one row


def read_losses(path: Path) -> Columns:
    """Return the columns that the pictures of the loss need, of a metrics file.

    Raises:
        OSError: the file cannot be read.
    """
    return read_columns(path, lambda key: key in LOSSES)


def loss_sketch(columns: Columns, width: int = 72, height: int = 14) -> str:
    """Return training and validation loss as text for a terminal, no colours."""
    lines = []
    for key, name in LOSSES.items():
        if key in columns and len((column := columns[key].numbers()).x):
            lines.append(
                (
                    name,
                    *_dots(downsample(column, 2 * width, holes=False)),
                    key == "valid_loss" and len(column.x) < width,
                )
            )
    return sketch(lines, "iteration", width, height)


def chart_sketch(drawing: Drawing, chart: Chart, width: int = 72, height: int = 14) -> str:
    """Return a chart as text, its title above it."""
    unit = f" ({chart.panel.unit})" if chart.panel.unit else ""
    log = ", logarithmic" if chart.log else ""
    title = f"{chart.panel.title}{unit}{log}"
    if chart.panel.stacked:
        return f"{title}\n{_shares(drawing, chart, width)}"
    several, lines = len(drawing.runs) > 1, []
    for curve in chart.curves:
        parts = [drawing.runs[curve.run].name] if several else []
        parts += [curve.label] if len(chart.keys) > 1 else []
        points = replace(curve.points, x=drawing.at(curve.run, curve.points.x))
        lines.append((" ".join(parts), *_dots(points), curve.sparse and len(points.x) < width))
    return f"{title}\n{sketch(lines, AXES[drawing.axis][0], width, height, log=chart.log)}"


def _shares(drawing: Drawing, chart: Chart, width: int) -> str:
    """Return the parts of a whole as numbers, one line per run."""
    means = chart.bars or (tuple(float(np.mean(curve.points.y - curve.base)) for curve in chart.curves),)
    names = [run.name for run in drawing.runs] if len(drawing.runs) > 1 else [""]
    room = max(map(len, names))
    rows = [
        ", ".join(f"{label} {share:.0f}" for label, share in zip(chart.labels, each, strict=True)) for each in means
    ]
    return "\n".join(f"{name:{room}}  {row}"[:width].rstrip() for name, row in zip(names, rows, strict=True))


def _dots(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Return a line through the points, by way of the extremes of those whose rows lie far apart."""
    x, y = points.x, points.y
    if points.low is not None and points.high is not None:
        outside = points.standing_out()
        ends = np.stack([points.low[outside], points.high[outside]], 1).ravel()
        x, y = np.insert(x, np.repeat(outside, 2), np.repeat(x[outside], 2)), np.insert(y, np.repeat(outside, 2), ends)
    kept = np.isfinite(y)
    return x[kept], y[kept]


def sketch(lines: Sketched, xlabel: str, width: int, height: int, *, log: bool = False, zero: bool = False) -> str:
    """Return lines as text of ``width`` by ``height`` characters.

    All lines are fine dots. Where there are several, a number at the right end says which is which, and the
    legend at the top right what the numbers mean. Single points are round dots, or their number.

    Args:
        lines: name, x and y (finite), whether they are single points.
        xlabel: what x is.
        width: in characters.
        height: in lines.
        log: whether y is logarithmic.
        zero: whether the y axis begins at 0.
    """
    shown = [(name, x[y > 0], y[y > 0], single) for name, x, y, single in lines] if log else lines
    drawn = [line for line in shown if len(line[1])]
    if not drawn:
        return "\n".join(["no values", *[""] * (height - 1)])
    tagged = sum(not single for *_, single in drawn) > 1
    tags = [TAGS[i % len(TAGS)] if tagged else "" for i in range(len(drawn))]
    legend = _legend(drawn, tags, width)
    rows = max(3, height - 3 - len(legend))
    low, high = _span(np.concatenate([line[2] for line in drawn]), zero=zero, log=log)
    values = log_ticks(low, high, rows // 2) if log else round_ticks(low, high, max(2, rows // 2))
    names = tick_labels(values, log=log)
    left = max(map(len, names)) + 1
    margin = 1 + min(MOST_TAGS, len(drawn)) if tagged else 0
    columns = width - left - 2 - margin
    x = np.concatenate([line[1] for line in drawn])
    view = (float(x.min()), float(x.max())) if x.min() < x.max() else (float(x[0]) - 1, float(x[0]) + 1)
    place = _scale(low, high, log=log)
    cells, ends = _cells(drawn, tags, view, place, columns, rows)
    at_row = {min(rows - 1, int((1 - place(value)) * rows)): name for value, name in zip(values, names, strict=True)}
    found = [line.rjust(width) for line in legend]
    for row in range(rows):
        tick = "\u2524" if row in at_row else "\u2502"
        end = " " + "".join(tag for tag, at in zip(tags, ends, strict=True) if at == row)[:MOST_TAGS] if tagged else ""
        found.append(f"{at_row.get(row, ''):>{left}}{tick}{''.join(cells[row])}{end}".rstrip())
    return "\n".join([*found, *_x_axis(view, left, columns, xlabel)])


def _legend(lines: Sketched, tags: Sequence[str], width: int) -> list[str]:
    """Return the lines of the legend, none longer than ``width``."""
    found: list[str] = []
    for line, tag in zip(lines, tags, strict=True):
        entry = f"{tag or (POINT if line[3] else LINE * 2)} {line[0]}"[:width] if line[0] else ""
        if found and len(found[-1]) + 3 + len(entry) <= width:
            found[-1] += f"   {entry}"
        elif entry:
            found.append(entry)
    return found


def _span(values: np.ndarray, *, zero: bool, log: bool) -> tuple[float, float]:
    """Return the ends of the y axis, a little beyond the values; from 0 for values that never change."""
    low, high = float(values.min()), float(values.max())
    if log:
        return (low / 1.2, high * 1.2) if low < high else (low / 2, high * 2)
    if high - low <= 1e-6 * abs(high):
        return (min(0.0, 1.3 * high), max(0.0, 1.3 * high)) if high else (0.0, 1.0)
    more = 0.02 * (high - low)
    return (0.0 if zero else low - more, high + more)


def _scale(low: float, high: float, *, log: bool) -> Scale:
    if log:
        return lambda value: (np.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return lambda value: (value - low) / (high - low)


def _cells(
    lines: Sketched, tags: Sequence[str], view: tuple[float, float], place: Scale, columns: int, rows: int
) -> tuple[list[list[str]], list[int]]:
    """Return the letters of the plot by row, and the row in which each line ends."""
    bits = np.zeros((rows, columns), np.int64)
    marks: dict[tuple[int, int], str] = {}
    ends = []
    for (_, x, y, single), tag in zip(lines, tags, strict=True):
        across = (np.asarray(x, float) - view[0]) / (view[1] - view[0]) * (2 * columns - 1)
        down = np.clip((1 - place(np.asarray(y, float))) * (4 * rows) - 0.5, 0, 4 * rows - 1)
        ends.append(int(down[-1]) // 4)
        if single:
            marks |= {(int(b) // 4, int(a) // 2): tag or POINT for a, b in zip(across, down, strict=True)}
            continue
        a, b = _joined(across, down)
        np.bitwise_or.at(bits, (b // 4, a // 2), DOTS[b % 4, a % 2])
    cells = [[chr(BRAILLE + int(bit)) if bit else " " for bit in row] for row in bits]
    for (row, column), mark in marks.items():
        cells[row][column] = mark
    return cells, ends


def _joined(across: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return dots along the line through points, no two neighbours farther apart than one dot."""
    steps = np.maximum(1, np.ceil(np.maximum(np.abs(np.diff(across)), np.abs(np.diff(down))))).astype(int)
    at = np.concatenate([[0.0], *(i + np.arange(1, n + 1) / n for i, n in enumerate(steps))])
    places = np.arange(len(across))
    dots = np.rint([np.interp(at, places, each) for each in (across, down)]).astype(int)
    return dots[0], dots[1]


def _x_axis(view: tuple[float, float], left: int, columns: int, xlabel: str) -> list[str]:
    """Return the axis, its ticks, and its name."""
    values = round_ticks(*view, max(2, columns // 12))
    if xlabel in ("iteration", "step", "samples", "tokens"):
        values = [value for value in values if value == round(value)]
    names = tick_labels(values)
    line, words = [LINE] * columns, [" "] * (left + 1 + columns)
    for value, name in zip(values, names, strict=True):
        at = round((value - view[0]) / (view[1] - view[0]) * (columns - 1))
        line[at] = "\u252c"
        start = min(left + 1 + at - len(name) // 2, len(words) - len(name))
        if all(letter == " " for letter in words[max(0, start - 1) : start + len(name)]):
            words[start : start + len(name)] = name
    return [f"{'':{left}}\u2514{''.join(line)}", "".join(words).rstrip(), xlabel.center(2 * left + columns).rstrip()]
