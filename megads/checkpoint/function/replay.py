"""Compares the losses of a stored batch with those that it has now. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from megads.checkpoint.function.record import MADE_WITH, Record
from megads.checkpoint.function.tolerance import tolerance
from megads.config.rules.allowed_changes import REPLAY
from megads.errors import CheckpointError
from megads.text.plural import plural


def check_losses(
    path: Path,
    record: Record,
    losses: Sequence[float],
    products: str,
    num_layers: int,
    made_with: Mapping[str, str],
    *,
    allows: bool = False,
    cure: str = f"ALLOW_CHANGES={REPLAY} resumes with the loss as it is now",
) -> str:
    """Return a line that says how well the losses of the stored rows agree with the ``record``'s.

    Args:
        path: of the checkpoint.
        record: what it says; with losses.
        losses: of its rows now.
        products: the type in which they were multiplied now.
        num_layers: of the model.
        made_with: versions and the like of this run, see ``MADE_WITH``.
        allows: whether any loss is accepted.
        cure: what else the user can do about a loss that differs.

    Raises:
        CheckpointError: they differ by more than rounding explains.
    """
    then, now = record.loss, math.fsum(losses) / len(losses)
    # That of the worst row for all: logits of a row with a small loss spread no less.
    limit = tolerance((record.products, products), num_layers, max(record.losses))
    apart = [abs(was - found) for was, found in zip(record.losses, losses, strict=True)]
    apart = [math.inf if math.isnan(each) else each for each in apart]
    row = max(range(len(apart)), key=apart.__getitem__)
    worst = apart[row]
    rows = plural(len(apart), "stored row")
    if worst <= limit:
        agree = "to the bit" if not worst else f"differences up to {worst:.2g}, rounding explains {limit:.2g}"
        return f"loss {now:.4f} on {rows} as when it was saved ({agree})"
    text = (
        f"loss {now:.4f} on {rows}, {then:.4f} when it was saved: row {row + 1} differs by {worst:.3g} nats per token, "
        f"rounding in {products} explains {limit:.2g}"
    )
    if allows:
        return f"{text}; a change is allowed"
    changed = [
        f"{name} {record.made_with[name]} -> {made_with[name]}"
        for name in MADE_WITH
        if name in record.made_with and name in made_with and record.made_with[name] != made_with[name]
    ]
    what = f"changed: {', '.join(changed)}" if changed else "versions, engine and device are the same, too"
    same = plural(len(record.conventions), "convention")
    raise CheckpointError(
        f"{path}: the model computes another function: {text}; {same} did not change, so "
        f"code, a kernel or the hardware has changed ({what}); use what it was saved with, or {cure}"
    )
