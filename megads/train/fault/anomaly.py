"""Steps whose numbers are wrong: how they are found, when they are skipped, how a run rolls back or ends."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.resume.start_point import StartCheckpoints
from megads.comm.messages import broadcast_value
from megads.config.schedule.batches import SkipRanges
from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.errors import CheckpointError, TrainingError
from megads.train.resume import resume
from megads.train.saving import Saving
from megads.train.setup import Training

TO_DEVIATION = 1.4826
"""Median distance from the median -> standard deviation, for normal numbers."""

LEAST_DEVIATION = 0.01
"""Of the median: losses that hardly move do not make a spike of the next one that does."""


@dataclass(frozen=True)
class Anomaly:
    """A step whose numbers are wrong, and what the settings say about it."""

    iteration: int
    loss: float  # nats per token
    kind: str  # "spike" | "nan"
    policy: str  # "skip" | "stop" | "rollback"
    text: str  # what was found and what was expected


def largest_usual(losses: Sequence[float], factor: float) -> tuple[float, float]:
    """Return median and upper limit of what the next loss may be: the median + ``factor`` deviations of ``losses``.

    Median and median distance stay where they are when a tenth of the losses is out of all bounds.
    """
    middle = statistics.median(losses)
    deviation = TO_DEVIATION * statistics.median(abs(loss - middle) for loss in losses)
    return middle, middle + factor * max(deviation, LEAST_DEVIATION * abs(middle))


class Guard:
    """Watches the steps of one run; decides the same on every rank.

    What it decides by is the settings, the loss of the step, which is the same number on every
    rank, and :class:`Progress`, which a checkpoint keeps.
    """

    def __init__(self, run: RunConfig, checkpoints: Path):
        self.run, self.settings, self.checkpoints = run, run.stability, checkpoints
        self.skips_in_a_row = 0

    @property
    def window(self) -> int:
        """How many losses :class:`Progress` remembers; 0: the run does not look for spikes."""
        return self.settings.spike_window if self.settings.on_spike != "none" else 0

    def watching(self, progress: Progress) -> Callable[[float], bool] | None:
        """Return what the engine asks with the loss of the step after ``progress``, before the weights change.

        None where no setting needs it: the step then needs no communication for it.
        """
        if self.settings.on_spike == "none" and self.settings.on_nan == "skip":
            return None
        return lambda loss: self.find_anomaly(loss, progress) is None

    def find_anomaly(self, loss: float, progress: Progress) -> Anomaly | None:
        """Return what is wrong with the ``loss`` of the step after ``progress``, None when nothing is."""
        wanted, iteration = self.settings, progress.iteration + 1
        if not math.isfinite(loss):
            # Left to the optimizer, which finds its gradients as wrong.
            return None if wanted.on_nan == "skip" else Anomaly(iteration, loss, "nan", wanted.on_nan, f"loss {loss}")
        losses = progress.recent_losses
        if not self.window or len(losses) < self.window or progress.iteration < wanted.spike_after:
            return None
        middle, limit = largest_usual(losses, wanted.spike_factor)
        if loss <= limit:
            return None
        text = (
            f"loss {loss:.4g} is a spike: the last {len(losses)} around {middle:.4g} allow at most "
            f"{limit:.4g} (SPIKE_FACTOR={wanted.spike_factor:g})"
        )
        return Anomaly(iteration, loss, "spike", wanted.on_spike, text)

    def step_done(self, before: Progress, loss: float, result: StepResult) -> Anomaly | None:
        """Take note of the step after ``before``; return what is wrong with it and is to be acted on.

        Raises:
            TrainingError: on every rank, when too many steps in a row were skipped: the run looks busy and learns
                nothing.
        """
        anomaly = self.find_anomaly(loss, before) if result.rejected else self._wrong_gradient(before, loss, result)
        if anomaly is not None and anomaly.policy != "skip":
            return anomaly
        self.skips_in_a_row = self.skips_in_a_row + 1 if result.skipped else 0
        limit = self.run.train.max_skipped
        if limit and self.skips_in_a_row >= limit:
            raise TrainingError(self._too_many(before.iteration + 1, result, anomaly))
        return anomaly

    def _wrong_gradient(self, before: Progress, loss: float, result: StepResult) -> Anomaly | None:
        policy, iteration = self.settings.on_nan, before.iteration + 1
        if not result.skipped or policy == "skip" or self.scale_falls(result):
            return None
        return Anomaly(iteration, loss, "nan", policy, f"loss {loss:.4g} with a gradient that is not finite")

    def scale_falls(self, result: StepResult) -> bool:
        """Return whether the step is one of those by which fp16 finds its loss scale."""
        optim = self.run.optim
        return self.run.train.dtype == "fp16" and not optim.loss_scale and result.loss_scale > optim.min_loss_scale

    def _too_many(self, iteration: int, result: StepResult, anomaly: Anomaly | None) -> str:
        limit, optim = self.run.train.max_skipped, self.run.optim
        skipped = f"{limit} steps in a row, to iteration {iteration}, were skipped because"
        where = f"checkpoints are in {self.checkpoints}"
        if anomaly is not None:
            return (
                f"{skipped} their losses were spikes: {anomaly.text}; {where}; go back to one of them with "
                "CKPT_STEP and a lower LR, check the data, or raise SPIKE_FACTOR or MAX_SKIPPED_STEPS"
            )
        scale = ""
        if self.run.train.dtype == "fp16" and not optim.loss_scale and result.loss_scale <= optim.min_loss_scale:
            scale = f" although the loss scale is at its minimum of {result.loss_scale:g} (MIN_LOSS_SCALE)"
        other = ", use DTYPE=bf16" if self.run.train.dtype == "fp16" else ""
        return (
            f"{skipped} their gradients were not finite{scale}; {where}; lower LR{other}, check the "
            "data, or raise MAX_SKIPPED_STEPS"
        )


class Rollback:
    """Rolls one run back, from which this start resumes; ``saving`` knows what this start saved."""

    def __init__(self, training: Training, saving: Saving):
        self.training, self.saving = training, saving
        self.times: Counter[int] = Counter()

    def stop(self, anomaly: Anomaly) -> TrainingError:
        """Return the error that ends the run. Collective."""
        self.saving.complete()
        paths = self._paths()
        return TrainingError(f"{self._what(anomaly)}; {self._cure(anomaly, paths)}")

    def go_back(self, anomaly: Anomaly) -> Path:
        """Restore the run from its last valid checkpoint, and return that one's path. Collective.

        Only the count of rollbacks is newer than the checkpoint.

        Raises:
            TrainingError: on every rank: the run has no checkpoint yet, or went back to the same one too often.
        """
        self.saving.complete()
        limit, before = self.training.run.stability.max_rollbacks, self.training.progress
        paths = self._paths()
        if not paths:
            raise TrainingError(f"{self._what(anomaly)}; {self._cure(anomaly, paths)}")
        path = resume(self.training, StartCheckpoints(paths, is_own=True, has_begun=True))
        assert path is not None, "a start has checkpoints"
        self.times[iteration_of(path)] += 1
        if self.times[iteration_of(path)] > limit:
            raise TrainingError(
                f"{self._what(anomaly)}; MAX_ROLLBACKS={limit} rollbacks to {path} did not help; resume from "
                "an older checkpoint (CKPT_STEP), lower LR, check the data, or raise ROLLBACK_SKIP or MAX_ROLLBACKS"
            )
        self.training.progress = replace(self.training.progress, rollbacks=before.rollbacks + 1)
        return path

    def _paths(self) -> tuple[Path, ...]:
        """Return the run's checkpoints to which it may go back, oldest first, as rank 0 sees them. Collective."""
        # Where a start went back with CKPT_STEP, later checkpoints are of a future that it gave up.
        found: tuple[Path, ...] | CheckpointError = ()
        if self.training.groups.rank == 0:
            try:
                paths = list_checkpoints(self.training.checkpoints)
                found = tuple(path for path in paths if iteration_of(path) <= self.saving.newest)
            except CheckpointError as error:
                found = error
        found = broadcast_value(found)
        if isinstance(found, CheckpointError):
            raise found
        return found

    def _what(self, anomaly: Anomaly) -> str:
        return f"step {anomaly.iteration}: {anomaly.text}"

    def _cure(self, anomaly: Anomaly, paths: tuple[Path, ...]) -> str:
        name = "ON_SPIKE" if anomaly.kind == "spike" else "ON_NAN"
        if not paths:
            return (
                f"{name}={anomaly.policy}, and the run has no checkpoint yet, so nothing is saved; lower "
                f"LR, check the data, save earlier (SAVE_INTERVAL), or set {name}=skip"
            )
        run, first = self.training.run, iteration_of(paths[-1]) + 1
        ranges = SkipRanges.parse(f"{run.train.skip_iterations} {first}-{anomaly.iteration}")
        return (
            f"{name}={anomaly.policy} ends the run, and this step is discarded; the last checkpoint is "
            f"{paths[-1]}: resume from it without this data by setting SKIP_TRAIN_ITERATION_RANGE='{ranges}', set "
            f"{name}=rollback, or lower LR"
        )
