"""What a loop calls to have the numbers of its steps watched."""

from __future__ import annotations

from collections.abc import Callable

from megads.checkpoint.resume.progress import Progress
from megads.train.numbers.replicas import ReplicaCheck
from megads.train.setup import Training


class NumberWatch:
    """Watches the numbers of one run. All ranks call it in the same steps."""

    def __init__(self, training: Training):
        self.replicas = ReplicaCheck(training)

    def accepting(self, done: Progress, ask: Callable[[float], bool] | None) -> Callable[[float], bool] | None:
        """Return what the engine calls in the step after ``done`` before the weights change; it asks ``ask``, too."""
        iteration = done.iteration + 1
        if not self.replicas.is_due(iteration):
            return ask

        def look(loss: float) -> bool:
            self.replicas.look(iteration)
            return ask is None or ask(loss)

        return look
