"""Steps whose numbers are wrong: when they are left out, when the run ends."""

from __future__ import annotations

from pathlib import Path

from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.errors import TrainingError


class Guard:
    """Watches the steps of one run; decides the same on every rank.

    Args:
        run: derived settings.
        checkpoints: the run's, for messages.
    """

    def __init__(self, run: RunConfig, checkpoints: Path):
        self.run, self.checkpoints = run, checkpoints
        self.skips_in_a_row = 0

    def accepts(self, loss: float) -> bool:
        """Return whether the weights may change by a step of this loss; asked before they do."""
        return True

    def step_done(self, iteration: int, loss: float, result: StepResult) -> None:
        """Take note of a step.

        Raises:
            TrainingError: on every rank, when too many steps in a row were skipped: the run looks busy and learns
                nothing.
        """
        self.skips_in_a_row = self.skips_in_a_row + 1 if result.skipped else 0
        limit = self.run.train.max_skipped
        if limit and self.skips_in_a_row >= limit:
            raise TrainingError(
                f"{limit} steps in a row, to iteration {iteration}, were skipped because their gradients were not "
                f"finite; checkpoints are in {self.checkpoints}; lower LR, look at the data, or raise MAX_SKIPPED_STEPS"
            )
