"""Which stage of the data a step is of: a line where one begins, and entries of the rows of metrics."""

from __future__ import annotations

from megads.config.data_stages.table import StageTable
from megads.config.schema import RunConfig
from megads.monitor.log import LOG
from megads.text.units import count


class StageReport:
    """Reports the stages of a run; nothing where its data has none."""

    def __init__(self, run: RunConfig):
        self._table = StageTable.of(run)
        self._last = -1  # number of the stage that was reported

    def report(self, iteration: int, consumed: int) -> None:
        """Log the stage of step ``iteration``, which began behind ``consumed`` samples, if it is another one."""
        if self._table is None or (index := self._table.index_at(consumed)) == self._last:
            return
        stage, self._last = self._table.stages[index], index
        where = "" if consumed == stage.first else f", {count(consumed - stage.first)} samples into it"
        LOG.info(
            "stage    %s (%d of %d) at step %d%s: %d samples x %d tokens, ends at step %d",
            *(stage.name, index + 1, len(self._table.stages), iteration, where, stage.batch, stage.seq),
            self._table.iteration_ends()[index],
        )

    def entries(self, consumed: int) -> dict[str, int]:
        """Return what a row says of the step that began when ``consumed`` samples were used; stages count from 1."""
        if self._table is None:
            return {}
        index = self._table.index_at(consumed)
        return {"stage": index + 1, "seq_length": self._table.stages[index].seq}
