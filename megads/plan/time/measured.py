"""What was measured, in a form that corrects predictions: steps of a run, or rates of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megads.config.schema import RunConfig

LEAST_STEPS = 10
"""Of a run whose steps correct predictions."""


@dataclass(frozen=True)
class MeasuredRun:
    """Steady steps of a run: those of the full global batch, without the first ones.

    Attributes:
        name: of its folder, for messages.
        run: its settings, derived.
        device: as torch reports it; of a CPU ``cpu``.
        world_size: its ranks.
        per_host: ranks on a host.
        step_s: median, without the wait for data.
        scatter: median absolute deviation of ``step_s``, as a standard deviation, as a share of it.
        steps: that count.
        parts: medians of rank 0's sections in seconds, as ``time/PART_s``; empty with TIME_SPLIT=0.
    """

    name: str
    run: RunConfig
    device: str
    world_size: int
    per_host: int
    step_s: float
    scatter: float
    steps: int
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRates:
    """What ``megads bench`` found.

    Attributes:
        name: of its file, for messages.
        device: as torch reports it, or the CPU's name.
        products: dtype, FLOPs and TFLOP/s of matrix products.
        memory_gb_s: read and written by a large sum; 0: not measured.
        links_gb_s: ranks of a group -> GB/s per rank and direction of its largest collectives.
        steps: of models that it trained.
    """

    name: str
    device: str
    products: tuple[tuple[str, float, float], ...] = ()
    memory_gb_s: float = 0.0
    links_gb_s: Mapping[int, float] = field(default_factory=dict)
    steps: tuple[MeasuredRun, ...] = ()


Measured = MeasuredRun | MeasuredRates
