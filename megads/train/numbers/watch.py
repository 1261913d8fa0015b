"""What a loop calls to have the numbers of its steps watched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from megads.checkpoint.resume.progress import Progress
from megads.config.schedule.rates import Rates
from megads.engine.base import StepResult
from megads.train.fault.anomaly import Guard
from megads.train.numbers.nonfinite import NonFinite
from megads.train.numbers.ranges import RangeCheck
from megads.train.numbers.replicas import ReplicaCheck
from megads.train.numbers.rounding import RoundingCheck
from megads.train.setup import Training


class NumberWatch:
    """Watches the numbers of one run. All ranks call it in the same steps."""

    def __init__(self, training: Training, guard: Guard):
        self.guard = guard
        self.replicas, self.nonfinite = ReplicaCheck(training), NonFinite(training)
        self.rounding, self.ranges = RoundingCheck(training), RangeCheck(training)

    @contextmanager
    def step(self, done: Progress, rates: Rates, micro_batches: int) -> Iterator[None]:
        """Watch the block, the engine's part of the step after ``done``, of so many micro-batches of this rank."""
        iteration = done.iteration + 1
        with self.rounding.step(iteration, rates.lr), self.ranges.step(iteration, micro_batches):
            yield

    def rows(self, result: StepResult) -> list[dict[str, float]]:
        """Return what was watched of the step whose ``result`` this is, on rank 0; empty rows are none."""
        return [self.rounding.row, self.ranges.row(result.grad_norm)]

    def accepting(self, done: Progress, ask: Callable[[float], bool] | None) -> Callable[[float], bool] | None:
        """Return what the engine calls in the step after ``done`` before the weights change; it asks ``ask``, too."""
        iteration = done.iteration + 1
        if not self.replicas.is_due(iteration):
            return ask

        def look(loss: float) -> bool:
            self.replicas.look(iteration)
            return ask is None or ask(loss)

        return look

    def step_done(self, before: Progress, parts: Sequence[Tensor], rates: Rates, result: StepResult) -> None:
        """Look into the step after ``before`` if it was not finite; its weights are still there. Collective.

        Overflows by which fp16 finds its loss scale are none.
        """
        is_finite = math.isfinite(float(result.loss))
        if is_finite and (result.rejected or not result.skipped or self.guard.scale_falls(result)):
            return
        if self.nonfinite.wants and result.skipped:
            self.nonfinite.look(before, parts, rates.lr, result.loss_scale)
