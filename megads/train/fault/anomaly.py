"""Steps whose numbers are wrong: how they are found, when they are skipped, when the run ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.checkpoint.resume.progress import Progress
from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.errors import TrainingError

TO_DEVIATION = 1.4826
"""Median distance from the median -> standard deviation, for normal numbers."""

LEAST_SPREAD = 0.01
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
    """Return median and upper limit of what the next loss may be: the median + ``factor`` spreads of ``losses``.

    Median and median distance stay where they are when a tenth of the losses is out of all bounds.
    """
    middle = statistics.median(losses)
    spread = TO_DEVIATION * statistics.median(abs(loss - middle) for loss in losses)
    return middle, middle + factor * max(spread, LEAST_SPREAD * abs(middle))


class Guard:
    """Watches the steps of one run; decides the same on every rank.

    What it decides by is the settings, the loss of the step, which is the same number on every
    rank, and :class:`Progress`, which a checkpoint keeps.

    Args:
        run: derived settings.
        checkpoints: the run's, for messages.
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

        None where no setting wants to know: the step then needs no communication for it.
        """
        if self.settings.on_spike == "none" and self.settings.on_nan == "skip":
            return None
        return lambda loss: self.judge(loss, progress) is None

    def judge(self, loss: float, progress: Progress) -> Anomaly | None:
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
        trouble = self.judge(loss, before) if result.rejected else self._wrong_gradient(before, loss, result)
        if trouble is not None and trouble.policy != "skip":
            return trouble
        self.skips_in_a_row = self.skips_in_a_row + 1 if result.skipped else 0
        limit = self.run.train.max_skipped
        if limit and self.skips_in_a_row >= limit:
            raise TrainingError(self._too_many(before.iteration + 1, result, trouble))
        return trouble

    def _wrong_gradient(self, before: Progress, loss: float, result: StepResult) -> Anomaly | None:
        policy, iteration = self.settings.on_nan, before.iteration + 1
        if not result.skipped or policy == "skip" or self._scale_falls(result):
            return None
        return Anomaly(iteration, loss, "nan", policy, f"loss {loss:.4g} with a gradient that is not finite")

    def _scale_falls(self, result: StepResult) -> bool:
        """Return whether the step is one of those by which fp16 finds its loss scale."""
        optim = self.run.optim
        return self.run.train.dtype == "fp16" and not optim.loss_scale and result.loss_scale > optim.min_loss_scale

    def _too_many(self, iteration: int, result: StepResult, trouble: Anomaly | None) -> str:
        limit, optim = self.run.train.max_skipped, self.run.optim
        told = f"{limit} steps in a row, to iteration {iteration}, were skipped because"
        where = f"checkpoints are in {self.checkpoints}"
        if trouble is not None:
            return (
                f"{told} their losses were spikes: {trouble.text}; {where}; go back to one of them with CKPT_STEP and "
                "a lower LR, check the data, or raise SPIKE_FACTOR or MAX_SKIPPED_STEPS"
            )
        scale = ""
        if self.run.train.dtype == "fp16" and not optim.loss_scale and result.loss_scale <= optim.min_loss_scale:
            scale = f" although the loss scale is at its minimum of {result.loss_scale:g} (MIN_LOSS_SCALE)"
        other = ", use DTYPE=bf16" if self.run.train.dtype == "fp16" else ""
        return (
            f"{told} their gradients were not finite{scale}; {where}; lower LR{other}, check the "
            "data, or raise MAX_SKIPPED_STEPS"
        )
