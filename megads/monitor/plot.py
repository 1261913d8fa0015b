"""The loss of a run as a picture: a PNG file, and a sketch in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def series(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """Return the iterations and values of the rows that have a number under ``key``."""
    kept = [(row["iteration"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
    return [i for i, _ in kept], [v for _, v in kept]


def save_loss_plot(rows: Rows, path: Path, title: str) -> None:
    """Draw training and validation loss over iterations into ``path``, a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*series(rows, "lm_loss"), lw=1, label="training")
    steps, values = series(rows, "valid_loss")
    if steps:
        axes.plot(steps, values, "o-", ms=4, label="validation")
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def loss_sketch(rows: Rows, width: int = 72, height: int = 14) -> str:
    """Return training and validation loss as text for a terminal, no colours."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.plot(*series(rows, "lm_loss"), label="training")
    steps, values = series(rows, "valid_loss")
    if steps:
        plotext.scatter(steps, values, label="validation", marker="o")
    plotext.xlabel("iteration")
    text: str = plotext.uncolorize(plotext.build())
    return text
