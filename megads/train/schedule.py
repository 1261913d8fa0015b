"""The learning rate as a pure function of samples seen.

Counting samples, and the shapes, follow Megatron-LM's optimizer schedule: the first step
of a warm-up uses the rate 0, and steps that were skipped do not move the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from megads.config.batches import BatchSchedule
from megads.config.schema import RunConfig


@dataclass(frozen=True)
class Rates:
    """What the schedule says of one step."""

    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Schedule:
    """Warm-up to ``max_lr``, then a decay to ``min_lr``; all lengths in samples."""

    max_lr: float
    min_lr: float
    warmup_samples: float
    decay_samples: int
    style: str  # "cosine" | "linear" | "constant"
    weight_decay: float = 0.0

    @staticmethod
    def of(run: RunConfig) -> Schedule:
        """Return the schedule of ``run``, which is derived; its first iterations may be of fewer samples."""
        sizes = BatchSchedule.of(run)
        decay = sizes.samples_after(run.optim.lr_decay_iters)
        warmup = sizes.samples_after(run.optim.lr_warmup_iters) or run.optim.lr_warmup_frac * decay
        return Schedule(run.optim.lr, run.optim.min_lr, warmup, decay, run.optim.lr_decay_style, run.optim.weight_decay)

    def at(self, samples: int) -> Rates:
        """Return the rates of the step that follows ``samples`` scheduled samples."""
        return Rates(self.lr(samples), self.weight_decay)

    def lr(self, samples: int) -> float:
        """Return the learning rate of the step that follows ``samples`` scheduled samples."""
        if self.warmup_samples > 0 and samples <= self.warmup_samples:
            return self.max_lr * samples / self.warmup_samples
        if self.style == "constant":
            return self.max_lr
        if samples > self.decay_samples:
            return self.min_lr
        done = (samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        left = 1 - done if self.style == "linear" else (math.cos(math.pi * done) + 1) / 2
        return self.min_lr + left * (self.max_lr - self.min_lr)
