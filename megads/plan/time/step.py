"""How long a step takes, line by line. Arithmetic, no torch; every line is an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megads.config.schema import RunConfig
from megads.plan.place import Place
from megads.plan.rates import Rates
from megads.plan.roofline import roofline
from megads.plan.time.systems import MEGADS, System

Kind = Literal["compute", "memory", "communication", "idle", "host"]


@dataclass(frozen=True)
class Line:
    """What takes ``seconds`` of a step, what would shorten it, and whether micro-batches do not repeat it."""

    name: str
    seconds: float
    kind: Kind
    cure: str = ""
    is_once: bool = False


@dataclass(frozen=True)
class StepTime:
    """A step.

    Attributes:
        lines: of the slowest pipeline stage; their sum is the step.
        tokens: of a step, on all devices.
        mfu_full: share of the peak, with causal attention counted in full.
        mfu_causal: with half of it.
    """

    lines: tuple[Line, ...]
    tokens: int
    world_size: int
    mfu_full: float
    mfu_causal: float

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return sum(line.seconds for line in self.lines)

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second and device."""
        return self.tokens / self.step_s / self.world_size

    def share(self, kind: Kind) -> float:
        """Return the share of the step that lines of a kind take."""
        return sum(line.seconds for line in self.lines if line.kind == kind) / self.step_s

    def longest(self) -> list[Line]:
        """Return the lines that a change would shorten, the longest first."""
        return sorted((line for line in self.lines if line.cure), key=lambda line: -line.seconds)


def step_time(run: RunConfig, world_size: int, place: Place, *, system: System = MEGADS) -> StepTime:
    """Return how long a step of a derived ``run`` takes on ``world_size`` devices of ``place``.

    Raises:
        ConfigError: the device's peak is not known for the run's dtype.
    """
    found = roofline(run, world_size, place.device, place.peak_tflops(run.train.dtype))
    lines = tuple(
        Line(each.name, each.seconds / _rate(_kind(each.name), place.rates), _kind(each.name), each.cure, each.is_once)
        for each in found.lines
    )
    return StepTime(lines, found.tokens, world_size, found.mfu_full, found.mfu_causal)


def _rate(kind: Kind, rates: Rates) -> float:
    """Return how many times as fast as without a measurement lines of a kind are."""
    by_kind: dict[Kind, float] = {
        "compute": rates.matmul,
        "memory": rates.memory,
        "communication": rates.links,
        "idle": rates.matmul,
        "host": rates.host,
    }
    return by_kind[kind]


def _kind(name: str) -> Kind:
    if name in ("matrix products", "attention", "recomputation"):
        return "compute"
    if name.startswith("communication"):
        return "communication"
    if name.startswith("idle"):
        return "idle"
    return "host" if name in ("host", "gaps between kernels") else "memory"
