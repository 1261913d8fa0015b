"""What the steps between two log lines were like, and the lines of a step: ours, and Megatron-LM's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from megads.monitor.throughput import Speed, mfu_text
from megads.text.units import count, duration, seconds

STALL_SHOWN = 0.05  # of a step's time, from where on a data stall is shown


@dataclass
class Interval:
    """Sums over the steps since the last log line."""

    steps: int = 0
    skipped: int = 0
    nans: int = 0
    losses: list[float] = field(default_factory=list)  # of the steps that were not skipped
    terms: list[Mapping[str, float]] = field(default_factory=list)  # of those losses, where they have several
    seconds: float = 0.0
    waited_s: float = 0.0  # for data
    speeds: list[Speed] = field(default_factory=list)

    def add(
        self,
        loss: float,
        speed: Speed,
        *,
        skipped: bool,
        waited_s: float = 0.0,
        terms: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Take note of a step."""
        self.steps += 1
        self.skipped += skipped
        self.nans += not math.isfinite(loss)
        if not skipped:
            self.losses.append(loss)
            self.terms.append(terms)
        self.seconds += speed.step_time_s
        self.waited_s += waited_s
        self.speeds.append(speed)

    @property
    def loss(self) -> float:
        """The mean over the steps that were not skipped, nan when all were."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def mean_terms(self) -> dict[str, float]:
        """The mean of each term over the steps that were not skipped; empty where the loss is one term."""
        names = self.terms[0] if self.terms else {}
        return {name: math.fsum(each[name] for each in self.terms) / len(self.terms) for name in names}

    @property
    def speed(self) -> Speed:
        """The mean step time, and what was achieved over the whole time."""
        if len(self.speeds) == 1:
            return self.speeds[0]
        means: dict[str, float | None] = {}
        for each in fields(Speed):
            values = [(getattr(speed, each.name), speed.step_time_s) for speed in self.speeds]
            is_known = all(value is not None for value, _ in values)
            means[each.name] = math.fsum(value * took for value, took in values) / self.seconds if is_known else None
        return Speed(**{**means, "step_time_s": self.seconds / self.steps})  # type: ignore[arg-type]


def step_line(
    iteration: int,
    train_iters: int,
    loss: float,
    lr: float,
    grad_norm: float,
    speed: Speed,
    eta_s: float,
    *,
    batch: int = 0,
    scale: float = 1.0,
    waited: float = 0.0,
    skipped: str = "",
    terms: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Return the log line of one step; its columns are as wide in every step.

    ``batch``: samples of the step, shown unless 0. ``waited``: share of the step spent waiting
    for data, shown from :data:`STALL_SHOWN` on.
    ``skipped``: why the weights stayed as they were.
    """
    parts = [
        f"step {iteration:{len(str(train_iters))}d}/{train_iters}",
        f"loss {loss:7.4f}{_in_terms(terms)} | lr {lr:.2e} | grad norm {grad_norm:7.3f}",
        f"batch {batch}" if batch else "",
        f"scale {scale:g}" if scale != 1 else "",
        f"{count(speed.tokens_per_s):>5} tok/s | {seconds(speed.step_time_s):>6}",
        mfu_text(speed.mfu, speed.mfu_full, speed.mfu_causal),
        f"data stall {waited:.0%}" if waited > STALL_SHOWN else "",
        f"ETA {duration(eta_s):>6}",
        f"SKIPPED, {skipped}" if skipped else "",
    ]
    return " | ".join(filter(None, parts))


def _in_terms(terms: Mapping[str, float]) -> str:
    """Return `` (lm 6.9315, sop 0.6931)``; nothing where the loss is one term."""
    shown = ", ".join(f"{name.removesuffix('_loss')} {value:.4f}" for name, value in terms.items())
    return f" ({shown})" if shown else ""


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
    losses = interval.mean_terms or ({"lm_loss": loss} if loss > 0 else {})
    parts = [
        f"iteration {iteration:8d}/{train_iters:8d}",
        f"consumed samples: {samples:12d}",
        f"elapsed time per iteration (ms): {speed.step_time_s * 1000:.1f}",
        f"throughput per GPU (TFLOP/s/GPU): {speed.tflops_per_device:.1f}",
        f"learning rate: {lr:.6E}",
        f"global batch size: {batch:5d}",
        *(f"{name.replace('_', ' ')}: {value:.6E}" for name, value in losses.items()),
        f"loss scale: {loss_scale:.1f}",
        f"grad norm: {grad_norm:.3f}",
        *([f"num zeros: {num_zeros:.1f}"] if num_zeros is not None else []),
        *([f"params norm: {params_norm:.3f}"] if params_norm is not None else []),
        f"number of skipped iterations: {interval.skipped:3d}",
        f"number of nan iterations: {interval.nans:3d}",
    ]
    return "".join(f" {part} |" for part in parts)


def megatron_validation_line(iteration: int, losses: Mapping[str, tuple[float, float]]) -> str:
    """Return the line of a validation, as :func:`megatron_line`; ``losses`` are values and perplexities by name."""
    parts = [f" validation loss at iteration {iteration} |"]
    for name, (loss, ppl) in losses.items():
        shown = name.replace("_", " ")
        parts += [f"{shown} value: {loss:.6E} |", f"{shown} PPL: {ppl:.6E} |"]
    return " ".join(parts)
