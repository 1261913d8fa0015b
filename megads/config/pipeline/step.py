"""The end of a step: gradients are reduced while stages still compute, the optimizer steps, weights are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megads.config.pipeline.clock import Number
from megads.config.pipeline.repeating import StageEnd, Window


@dataclass(frozen=True)
class Closing:
    """What a stage does after the last gradient of its chunks.

    Attributes:
        reduce: time to reduce the gradients of each chunk over data-parallel ranks; empty: none.
        pieces: in which a chunk's gradients are reduced, each as soon as it is there; the pieces are equal, and their
            gradients come evenly during the chunk's last pass.
        optimizer: time of the optimizer.
        gather: time until all ranks have the new weights.
        is_hidden: whether stages compute while they reduce.
    """

    reduce: tuple[Number, ...] = ()
    pieces: int = 1
    optimizer: Number = 0
    gather: Number = 0
    is_hidden: bool = True


@dataclass(frozen=True)
class StepEnd:
    """When a step is over.

    Attributes:
        passes: the end of the last pass of any stage.
        reductions: of every stage and chunk, in the order in which they are done.
        updates: of every stage, the optimizer's.
        length: of the step.
    """

    passes: Number
    reductions: tuple[tuple[Window, ...], ...]
    updates: tuple[Window, ...]
    length: Number

    @property
    def exposed(self) -> Number:
        """Return the time between the last pass and the last gradient that is reduced."""
        return max([self.passes, *(window.end for each in self.reductions for window in each)]) - self.passes


def end_of_step(ends: Sequence[StageEnd], closings: Sequence[Closing], norm: Number | None = None) -> StepEnd:
    """Return when a step is over whose passes end as ``ends`` says.

    Args:
        closings: of every stage.
        norm: time of the gradient norm, which waits for all stages; None: no stage waits for another one.
    """
    reductions = [_reduced(end, closing) for end, closing in zip(ends, closings, strict=True)]
    ready = [max([end.end, *(each.end for each in done)]) for end, done in zip(ends, reductions, strict=True)]
    if norm is not None:
        ready = [max(ready) + norm] * len(ready)
    updates = tuple(Window(at, at + each.optimizer) for at, each in zip(ready, closings, strict=True))
    length = max(update.end + each.gather for update, each in zip(updates, closings, strict=True))
    return StepEnd(max(end.end for end in ends), tuple(map(tuple, reductions)), updates, length)


def _reduced(end: StageEnd, closing: Closing) -> list[Window]:
    """Return when the gradients of each chunk are reduced, one after the other, the last chunk's first."""
    if not closing.reduce:
        return []
    found: list[Window] = []
    free: Number = 0 if closing.is_hidden else end.end
    for last, seconds in sorted(zip(end.last, closing.reduce, strict=True), key=lambda each: each[0].end):
        first = last.start + (last.end - last.start) / closing.pieces
        start = max(free, first if closing.is_hidden else end.end)
        free = max(start + seconds, last.end + seconds / closing.pieces)
        found.append(Window(start, free))
    return found
