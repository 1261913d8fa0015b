"""Go back to the last checkpoint of a run while it runs, or say where it is before the run ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.checkpoint.resume.start_point import Start
from megads.comm.messages import broadcast_value
from megads.config.schedule.batches import SkipRanges
from megads.errors import CheckpointError, TrainingError
from megads.train.fault.anomaly import Anomaly
from megads.train.resume import resume_from
from megads.train.saving import Saving
from megads.train.setup import Training


class Rollback:
    """The way back of one run.

    Args:
        training: the run, at the iteration from which this start resumes.
        saving: knows what this start saved.
    """

    def __init__(self, training: Training, saving: Saving):
        self.training, self.saving = training, saving
        self.times: Counter[int] = Counter()

    def stop(self, trouble: Anomaly) -> TrainingError:
        """Return the error that ends the run. Collective."""
        self.saving.complete()
        paths = self._paths()
        return TrainingError(f"{self._what(trouble)}; {self._cure(trouble, paths)}")

    def go_back(self, trouble: Anomaly) -> Path:
        """Have the run be what it was at its last valid checkpoint, and return that one's path. Collective.

        Only the count of rollbacks is newer than the checkpoint.

        Raises:
            TrainingError: on every rank: the run has no checkpoint yet, or went back to the same one too often.
        """
        self.saving.complete()
        limit, before = self.training.run.stability.max_rollbacks, self.training.progress
        paths = self._paths()
        if not paths:
            raise TrainingError(f"{self._what(trouble)}; {self._cure(trouble, paths)}")
        path = resume_from(self.training, Start(paths, is_own=True, has_begun=True))
        self.times[iteration_of(path)] += 1
        if self.times[iteration_of(path)] > limit:
            raise TrainingError(
                f"{self._what(trouble)}; MAX_ROLLBACKS={limit} rollbacks to {path} did not help; resume from "
                "an older checkpoint (CKPT_STEP), lower LR, check the data, or raise ROLLBACK_SKIP or MAX_ROLLBACKS"
            )
        self.training.progress = replace(self.training.progress, rollbacks=before.rollbacks + 1)
        return path

    def _paths(self) -> tuple[Path, ...]:
        """Return the run's checkpoints to which it may go back, oldest first, as rank 0 sees them. Collective."""
        # Where a start went back with CKPT_STEP, later checkpoints are of a future that it gave up.
        groups, newest, found = self.training.groups, self.saving.newest, [[""], ""]
        if groups.rank == 0:
            try:
                paths = list_checkpoints(self.training.checkpoints)
                found = [[str(path) for path in paths if iteration_of(path) <= newest], ""]
            except CheckpointError as error:
                found = [[], str(error)]
        if groups.grid.world_size > 1:
            found = broadcast_value(found)
        if found[1]:
            raise CheckpointError(str(found[1]))
        return tuple(map(Path, found[0]))

    def _what(self, trouble: Anomaly) -> str:
        return f"step {trouble.iteration}: {trouble.text}"

    def _cure(self, trouble: Anomaly, paths: tuple[Path, ...]) -> str:
        name = "ON_SPIKE" if trouble.kind == "spike" else "ON_NAN"
        if not paths:
            return (
                f"{name}={trouble.policy}, and the run has no checkpoint yet, so nothing is saved; lower "
                f"LR, check the data, save earlier (SAVE_INTERVAL), or set {name}=skip"
            )
        run, first = self.training.run, iteration_of(paths[-1]) + 1
        ranges = SkipRanges.parse(f"{run.train.skip_iterations} {first}-{trouble.iteration}")
        return (
            f"{name}={trouble.policy} ends the run, and this step is discarded; the last checkpoint is "
            f"{paths[-1]}: resume from it without this data by setting SKIP_TRAIN_ITERATION_RANGE='{ranges}', set "
            f"{name}=rollback, or lower LR"
        )
