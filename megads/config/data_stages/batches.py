"""The global batch of stages that have one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.config.data_stages.table import StageTable
from megads.config.schedule.batches import BatchSchedule, Phase
from megads.config.schema import RunConfig


@dataclass(frozen=True)
class StageBatches(BatchSchedule):
    """The global batch as a function of the samples consumed: that of the stage they belong to."""

    stages: tuple[Phase, ...] = ()

    def batch_at(self, consumed: int) -> int:
        """Return the samples of the step that begins when ``consumed`` samples are used."""
        return next(self.phases(consumed)).batch

    def phases(self, consumed: int = 0) -> Iterator[Phase]:
        """Yield the phases of a run that resumes at ``consumed`` samples; the last one has no end."""
        for batch, steps, first in self.stages[:-1]:
            end = first + batch * (steps or 0)
            if consumed < end:
                left = -(-(end - consumed) // batch)
                yield Phase(batch, left, consumed)
                consumed += left * batch
        yield Phase(self.stages[-1].batch, None, consumed)


def stage_batches(run: RunConfig) -> BatchSchedule | None:
    """Return the batches of a derived run whose stages differ in them, None where they do not."""
    table = StageTable.of(run)
    if table is None or len({each.batch for each in table.stages}) == 1:
        return None
    phases = tuple(Phase(each.batch, each.iters, each.first) for each in table.stages)
    return StageBatches(phases[-1].batch, stages=phases)
