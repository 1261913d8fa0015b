"""What a run leaves at its end: ``loss.png``, and the loss as a sketch in its log."""

from __future__ import annotations

from pathlib import Path

from megads.monitor.columns import Columns, read_columns

KEYS = ("lm_loss", "valid_loss")


def read_losses(path: Path) -> Columns:
    """Return the columns that the pictures of the loss need, of a metrics file.

    Raises:
        OSError: the file cannot be read.
    """
    return read_columns(path, lambda key: key in KEYS)


def save_loss_plot(columns: Columns, path: Path, title: str) -> None:
    """Draw training and validation loss over iterations into ``path``, a PNG file."""
    from megads.monitor.plots.drawing import draw
    from megads.monitor.plots.picture import save_picture
    from megads.monitor.plots.source import Run

    save_picture(draw([Run(title, path, columns)], keys=["loss"], most=1500), path)
