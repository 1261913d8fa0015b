"""Time, tokens per second and model FLOP/s utilisation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from megads.plan.flops import Flops

SPEED_STEPS = 50  # last steps of one start, whose median is the speed of a run wherever it is shown


@dataclass(frozen=True)
class Speed:
    """What one step achieved: of that step alone, whatever ``log_interval`` is.

    Model FLOPs (``tflops_per_device``, ``mfu``) are those of one forward and backward pass;
    hardware FLOPs (``hardware_tflops_per_device``, ``hfu``) also what was computed again. A
    step whose update was skipped has done them all the same. ``mfu`` and ``hfu``, shares of
    the device's peak, are None when that is not known. ``mfu`` is one of ``mfu_full``, which counts the
    full square of causal attention, and ``mfu_causal``, which counts half of it: the one that
    ``FLOPS_CAUSAL`` names.
    """

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    tflops_per_device: float
    mfu: float | None
    hardware_tflops_per_device: float = 0.0
    hfu: float | None = None
    mfu_full: float | None = None
    mfu_causal: float | None = None


@dataclass(frozen=True)
class SpeedOf:
    """Turns a step's tokens and duration into :class:`Speed`."""

    flops: Flops  # of one token
    num_devices: int  # ranks of the run; each has one of what torch calls a device
    peak_tflops: float | None  # dense peak of one device in the run's dtype, or None

    def __call__(self, step_tokens: float, step_time_s: float) -> Speed:
        """Return the speed of a step of ``step_tokens`` tokens over all ranks that took ``step_time_s`` seconds."""
        tokens = step_tokens / step_time_s
        on_each = tokens / self.num_devices
        flops, counted = self.flops, (self.flops.full, self.flops.causal)
        of_token = (flops.model, flops.hardware, *(flops.model if each is None else each for each in counted))
        model, hardware, full, causal = (on_each * each / 1e12 for each in of_token)
        done = (model, hardware, full, causal)
        mfu, hfu, mfu_full, mfu_causal = (each / self.peak_tflops if self.peak_tflops else None for each in done)
        return Speed(step_time_s, tokens, on_each, model, mfu, hardware, hfu, mfu_full, mfu_causal)


def mfu_text(mfu: float | None, full: float | None, causal: float | None) -> str:
    """Return ``mfu 41.2% (causal 38.9%)``: the share by either way to count attention; empty where it is not known."""
    if mfu is None:
        return ""
    shown = f"mfu {mfu:.1%}"
    if full is None or causal is None or full == causal:
        return shown
    return f"{shown} (full {full:.1%})" if mfu == causal else f"{shown} (causal {causal:.1%})"


class Remaining:
    """Guesses when a run ends, from the wall time between its steps: validations and saves count.

    Time is taken to go with samples, since steps may grow. The first step, which is slow
    everywhere, is skipped as soon as there is another.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock = clock
        self.marks: list[float] = []  # start, end of the first step, end of the latest
        self.steps = 0
        self.samples = 0  # of all steps
        self.first_samples = 0

    def start(self) -> None:
        """Take note that the first step begins."""
        self.marks = [self.clock()]

    def step_done(self, samples: int) -> None:
        """Take note that a step of ``samples`` has ended."""
        self.steps += 1
        self.samples += samples
        self.first_samples = self.first_samples or samples
        self.marks = [*self.marks[:2], self.clock()]

    def seconds(self, samples_left: int) -> float:
        """Return the expected seconds for ``samples_left`` more samples, nan before the first step."""
        if self.steps == 0:
            return float("nan")
        first, counted = (0, self.samples) if self.steps == 1 else (1, self.samples - self.first_samples)
        return (self.marks[-1] - self.marks[first]) / counted * samples_left
