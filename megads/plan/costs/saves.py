"""What the checkpoints of a run take: bytes of each, how many are written, how many stay. Arithmetic, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megads.config.schema import RunConfig
from megads.plan.memory import count_trained, state_bytes

MASTER_BYTES = 4
"""Of a parameter in a checkpoint, whatever the run's dtype: its float32 master weight."""


@dataclass(frozen=True)
class Saves:
    """The checkpoints of a run, from its first step to its last."""

    each: int  # bytes of a checkpoint
    written: int  # checkpoints
    kept: int  # checkpoints that stay at the end
    at_once: int  # checkpoints that are there while one is being written


def bytes_per_save(run: RunConfig) -> int:
    """Return the bytes of a checkpoint of a derived run: of what is trained, weights and the optimizer's state."""
    return count_trained(run.model) * (MASTER_BYTES + (state_bytes(run) if run.checkpoint.save_optim else 0))


def saves_until(step: int, every: int, last: int) -> int:
    """Return how many checkpoints are written up to ``step``: every so many steps, and one at the end."""
    return (step // every if every else 0) + (step >= last and bool(not every or last % every))


def saves_of(run: RunConfig) -> Saves:
    """Return the checkpoints of a derived run, with ``SAVE_INTERVAL``, ``CKPT_KEEP`` and ``CKPT_KEEP_EVERY``."""
    last, every, wanted = run.train.train_iters, run.checkpoint.save_interval, run.checkpoint
    written = saves_until(last, every, last)
    newest = min(wanted.keep or written, written)
    kept = newest
    if wanted.keep and wanted.keep_every:
        oldest = min((every or last) * (written - newest + 1), last)  # of the newest
        kept += saves_until(oldest - 1, math.lcm(every or last, wanted.keep_every), last)
    # A checkpoint goes once its successor is complete.
    at_once = kept + bool(wanted.keep and written > wanted.keep)
    return Saves(bytes_per_save(run), written, kept, at_once)
