"""The learning rate that the stages of a run give: pieces, one after another, over the samples seen."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from megads.config.data_stages.table import DataStage, StageTable
from megads.errors import ConfigError

LEFT: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (math.cos(math.pi * done) + 1) / 2,
    "sqrt": lambda done: 1 - math.sqrt(done),
    "exponential": lambda done: 2 * math.pow(0.5, done) - 1,
}
"""What is left of the fall when a part of it is done: 1 at 0 and 0 at 1."""


@dataclass(frozen=True)
class Piece:
    """From ``start`` to ``end`` between two samples."""

    name: str  # "warm-up of main"
    first: float  # sample
    last: float  # sample at which it ends
    start: float
    end: float
    shape: str = "linear"

    def at(self, samples: float) -> float:
        """Return the rate of the step that follows ``samples`` samples."""
        if self.start == self.end:
            return self.end
        done = min(1.0, max(0.0, (samples - self.first) / (self.last - self.first)))
        return self.end + LEFT[self.shape](done) * (self.start - self.end)


def pieces_of(table: StageTable, lr: float, lr_init: float) -> tuple[Piece, ...]:
    """Return the pieces of all stages, in order; empty where no stage gives a rate.

    Args:
        table: of the run.
        lr: LR, the peak where a stage names none.
        lr_init: LR_WARMUP_INIT, where the warm-up of the first stage begins.

    Raises:
        ConfigError: the parts of a stage are longer than it.
    """
    if not table.has_rates:
        return ()
    found: list[Piece] = []
    for number, stage in enumerate(table.stages):
        before = found[-1].end if found else lr_init
        found += _pieces(table.file, stage, lr if number == 0 else before, before, lr)
    return tuple(found)


def _pieces(file: str, stage: DataStage, stays: float, before: float, lr: float) -> list[Piece]:
    """Return the pieces of one stage.

    Args:
        file: for messages.
        stage: the one.
        stays: its rate where nothing else is said.
        before: the rate with which the stage before it ends.
        lr: the peak of a warm-up that names none.
    """
    rate, begin, end = stage.rate, float(stage.first), float(stage.end)
    if rate is None:
        return [Piece(f"constant of {stage.name}", begin, end, stays, stays)]
    peak = rate.peak if rate.peak is not None else lr if rate.warmup else stays
    warmup = rate.warmup.samples(stage.iters, stage.batch, stage.seq) if rate.warmup else 0.0
    cooldown = rate.cooldown.samples(stage.iters, stage.batch, stage.seq) if rate.cooldown else 0.0
    if warmup + cooldown > stage.samples:
        parts = [f"{name} {part}" for name, part in (("warmup", rate.warmup), ("cooldown", rate.cooldown)) if part]
        raise ConfigError(
            f"{file}:{stage.line}: stage {stage.name}: {' and '.join(parts)} = {warmup + cooldown:.12g} samples "
            f"are more than its {stage.samples}; use less"
        )
    rises = begin + warmup
    falls = end if rate.to is None else end - cooldown if rate.cooldown else rises
    found = [
        Piece(f"warm-up of {stage.name}", begin, rises, before, peak),
        Piece(f"constant of {stage.name}", rises, falls, peak, peak),
        Piece(f"decay of {stage.name}", falls, end, peak, peak if rate.to is None else rate.to, rate.shape),
    ]
    return [each for each in found if each.last > each.first]


def rate_at(pieces: tuple[Piece, ...], samples: float) -> float:
    """Return the learning rate of the step that follows ``samples`` samples; behind the last piece its end."""
    starts = [each.first for each in pieces]
    piece = pieces[max(0, bisect.bisect_right(starts, samples) - 1)]
    return piece.at(samples)
