"""Weights for use of a checkpoint whose optimizer trains with others: schedule-free averages. No torch."""

from __future__ import annotations

from megads.checkpoint.format.manifest import Manifest
from megads.config.optimizers import OPTIMIZERS

ITERATE = "z"
"""Kind of state that a schedule-free optimizer steps."""


def average_weight(manifest: Manifest) -> float | None:
    """Return how far the weights for use are from those in the checkpoint to its iterates; None: they are the same.

    A schedule-free optimizer saves the point at which gradients are taken, ``y = (1 - beta) z +
    beta x``; the model is ``x`` (arXiv 2405.15682).
    """
    optim = manifest.settings.get("optim", {})
    row = OPTIMIZERS.get(str(optim.get("optimizer", "")))
    if row is None or not row.is_averaged or ITERATE not in manifest.kinds:
        return None
    beta = float(optim["adam_beta1" if "adam" in row.name else "sgd_momentum"])
    return 1 - 1 / beta
