"""Fewer points for the same picture: no spike is lost, no hole is bridged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megads.monitor.columns import Column

WIDE = 5.0  # times the usual distance between two rows: a hole
OUTSIDE = 3.0  # times the usual distance between least and greatest: drawn in full
RAW = 3  # a point without extremes needs a third of the numbers


@dataclass(frozen=True)
class Points:
    """Points of a curve."""

    x: np.ndarray  # iterations
    y: np.ndarray  # the value, or the mean of the rows that a point stands for; nan: a hole in the line
    low: np.ndarray | None = None  # the least and the greatest of these rows
    high: np.ndarray | None = None
    size: int = 1  # rows that a point stands for at most

    def standing_out(self) -> np.ndarray:
        """Return the numbers of the points whose rows lie far apart; there are none without extremes."""
        if self.low is None or self.high is None:
            return np.array([], np.int64)
        spans = self.high - self.low
        known = spans[np.isfinite(spans)]
        return np.flatnonzero(spans > OUTSIDE * np.median(known)) if len(known) else np.array([], np.int64)


def downsample(column: Column, most: int, smooth: int = 1, *, holes: bool = True) -> Points:
    """Return at most ``most`` points with extremes, or three times as many without, and the holes between them.

    Args:
        column: what to draw.
        most: points with extremes.
        smooth: rows around a point whose mean is the line; the extremes stay those of the rows.
        holes: whether a missing stretch of iterations breaks the line.
    """
    rows = len(column.x)
    line = moving_mean(column.y, smooth)
    if rows <= RAW * most:
        extremes = (column.y, column.y) if smooth > 1 else (None, None)
        found = Points(column.x, line, *extremes)
    else:
        edges = np.linspace(0, rows, most, endpoint=False).astype(np.int64)
        sizes = np.diff(np.append(edges, rows))
        middle = edges + sizes // 2
        found = Points(
            column.x[middle],
            line[middle] if smooth > sizes.max() else _means(line, edges),
            np.fmin.reduceat(column.y, edges),
            np.fmax.reduceat(column.y, edges),
            int(sizes.max()),
        )
    return _with_holes(found) if holes else found


def moving_mean(values: np.ndarray, rows: int) -> np.ndarray:
    """Return for each place the mean of the finite ones of the ``rows`` values around it, nan where there are none.

    At both ends the window is as far as there are values; it never lags.
    """
    if rows <= 1:
        return values
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0), dtype=np.float64)])
    counts = np.concatenate([[0], np.cumsum(finite)])
    first = np.maximum(np.arange(len(values)) - (rows - 1) // 2, 0)
    last = np.minimum(np.arange(len(values)) + rows // 2 + 1, len(values))
    return _ratio(sums[last] - sums[first], counts[last] - counts[first])


def _means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite, edges, dtype=np.float64)
    return _ratio(np.add.reduceat(np.where(finite, values, 0.0), edges, dtype=np.float64), counts)


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (sums / np.where(counts, counts, np.nan)).astype(np.float32)


def _with_holes(found: Points) -> Points:
    after = np.flatnonzero(holes_behind(found.x))
    x = np.insert(found.x, after + 1, (found.x[after] + found.x[after + 1]) / 2)
    low, high = (None if each is None else np.insert(each, after + 1, np.nan) for each in (found.low, found.high))
    return Points(x, np.insert(found.y, after + 1, np.nan), low, high, found.size)


def holes_behind(x: np.ndarray) -> np.ndarray:
    """Return for each but the last of ascending ``x`` whether there is a hole behind it."""
    steps = np.diff(x)
    if len(steps) < 3:
        return np.zeros(len(steps), bool)
    return np.asarray(steps > WIDE * np.quantile(steps, 0.9))
