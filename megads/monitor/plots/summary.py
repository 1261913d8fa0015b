"""A run's numbers in a few words, for the table of a page."""

from __future__ import annotations

import numpy as np

from megads.monitor.columns import Column
from megads.monitor.plots.source import Run
from megads.text.units import count

SUMMARY = ("step", "tokens", "loss", "validation loss", "best validation loss", "tokens/s (median)", "MFU (median)")


def summary_of(run: Run) -> dict[str, str]:
    """Return the last loss, speeds and so on as text, by the names in :data:`SUMMARY`."""
    found = {key: column.numbers() for key, column in run.columns.items() if len(column.numbers().x)}
    steps = max((float(column.x[-1]) for column in found.values()), default=0.0)
    total = run.settings.get("train.train_iters")
    facts = {"step": f"{steps:.0f}" + (f" of {total}" if isinstance(total, int) and total else "")}
    shown = {
        "tokens": ("consumed_tokens", _last, count),
        "loss": ("lm_loss", _last, "{:.4f}".format),
        "validation loss": ("valid_loss", _last, "{:.4f}".format),
        "best validation loss": ("valid_loss", lambda column: float(np.min(column.y)), "{:.4f}".format),
        "tokens/s (median)": ("tokens_per_s", _median, count),
        "MFU (median)": ("mfu", _median, "{:.1%}".format),
    }
    for name, (key, value_of, text) in shown.items():
        if key in found:
            facts[name] = text(value_of(found[key]))
    return facts


def _last(column: Column) -> float:
    return float(column.y[-1])


def _median(column: Column) -> float:
    return float(np.median(column.y))
