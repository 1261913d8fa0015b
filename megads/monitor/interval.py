"""What the steps between two log lines were like, and the line of a step as Megatron-LM has it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from megads.monitor.throughput import Speed


@dataclass
class Interval:
    """Sums over the steps since the last log line."""

    steps: int = 0
    skipped: int = 0
    nans: int = 0
    losses: list[float] = field(default_factory=list)  # of the steps that were not skipped
    seconds: float = 0.0
    waited_s: float = 0.0  # for data
    speeds: list[Speed] = field(default_factory=list)

    def add(self, loss: float, speed: Speed, *, skipped: bool, waited_s: float = 0.0) -> None:
        """Take note of a step."""
        self.steps += 1
        self.skipped += skipped
        self.nans += not math.isfinite(loss)
        if not skipped:
            self.losses.append(loss)
        self.seconds += speed.step_time_s
        self.waited_s += waited_s
        self.speeds.append(speed)

    @property
    def loss(self) -> float:
        """The mean over the steps that were not skipped, nan when all were."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def speed(self) -> Speed:
        """The mean step time, and what was achieved over the whole time."""
        if len(self.speeds) == 1:
            return self.speeds[0]
        means = {each.name: self._over_time(each.name) for each in fields(Speed)}
        return Speed(**{**means, "step_time_s": self.seconds / self.steps})  # type: ignore[arg-type]

    def _over_time(self, name: str) -> float | None:
        values = [getattr(speed, name) for speed in self.speeds]
        if None in values:
            return None
        times = (speed.step_time_s for speed in self.speeds)
        return math.fsum(value * took for value, took in zip(values, times, strict=True)) / self.seconds


def megatron_line(
    iteration: int,
    train_iters: int,
    samples: int,
    interval: Interval,
    *,
    lr: float,
    batch: int,
    loss_scale: float,
    grad_norm: float,
    num_zeros: int | None = None,
    params_norm: float | None = None,
) -> str:
    """Return the line of a step that programs which read logs of Megatron-LM look for (``training_log``).

    Loss, time and throughput are means over ``interval``, skipped and nan iterations those in
    it; the others are of the last step. Without a step that counted there is no loss.
    """
    speed, loss = interval.speed, interval.loss
    parts = [
        f"iteration {iteration:8d}/{train_iters:8d}",
        f"consumed samples: {samples:12d}",
        f"elapsed time per iteration (ms): {speed.step_time_s * 1000:.1f}",
        f"throughput per GPU (TFLOP/s/GPU): {speed.tflops_per_device:.1f}",
        f"learning rate: {lr:.6E}",
        f"global batch size: {batch:5d}",
        *([f"lm loss: {loss:.6E}"] if loss > 0 else []),
        f"loss scale: {loss_scale:.1f}",
        f"grad norm: {grad_norm:.3f}",
        *([f"num zeros: {num_zeros:.1f}"] if num_zeros is not None else []),
        *([f"params norm: {params_norm:.3f}"] if params_norm is not None else []),
        f"number of skipped iterations: {interval.skipped:3d}",
        f"number of nan iterations: {interval.nans:3d}",
    ]
    return "".join(f" {part} |" for part in parts)


def megatron_validation_line(iteration: int, loss: float, ppl: float) -> str:
    """Return the line of a validation, as :func:`megatron_line`."""
    return f" validation loss at iteration {iteration} | lm loss value: {loss:.6E} | lm loss PPL: {ppl:.6E} |"
