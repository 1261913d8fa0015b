"""How far a run is. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megads.errors import CheckpointError


@dataclass(frozen=True)
class Progress:
    """How far a run is; with the settings, this decides every later step."""

    iteration: int = 0
    consumed_samples: int = 0
    scheduled_samples: int = 0  # consumed_samples less those of skipped steps
    skipped_iterations: int = 0
    nan_iterations: int = 0
    rejected_iterations: int = 0  # of the skipped, those that a policy skipped
    rollbacks: int = 0
    first_valid_loss: float | None = None
    last_valid_loss: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    owes_validation: bool = False  # the one after this iteration was given up for a stop request
    owes_tasks: bool = False  # so were the tasks
    best_accuracy: float | None = None  # of a task's validation files, after an epoch
    best_valid_loss: float | None = None  # of a chat task's, the lowest after an epoch
    best_iteration: int = 0  # of the checkpoint that has it
    recent_losses: tuple[float, ...] = ()  # that the next one is judged by; empty unless the run looks for spikes

    @staticmethod
    def read(progress: Mapping[str, Any]) -> Progress:
        """Return what a manifest's ``progress`` says; CheckpointError for fields of another version of megads."""
        try:
            return Progress(**{**progress, "recent_losses": tuple(progress.get("recent_losses", ()))})
        except TypeError as error:
            raise CheckpointError(f"the checkpoint's progress cannot be read ({error})") from None
