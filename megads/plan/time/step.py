"""How long a step takes, line by line. Arithmetic, no torch; every line is an estimate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from megads.config.engine_choice import choose
from megads.config.pipeline.clock import Costs
from megads.config.pipeline.idle import idle_time
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of, virtual_stages
from megads.plan.flops import flops_per_token
from megads.plan.places.place import Place
from megads.plan.time.constants import Constants, fitted
from megads.plan.time.seconds import Kind, Line, Speeds, micro_batch, once, speeds_of, taken
from megads.plan.time.systems import COMPILED, MEGADS, Attention, System
from megads.plan.time.work import Work, attention_of, passes_of, works

THIRDS = Costs(Fraction(1, 3), Fraction(1, 3), Fraction(1, 3))
"""Of a micro-batch: forward, backward of inputs, weight gradients."""


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


@dataclass(frozen=True)
class Case:
    """A step before constants: what stages do, and what decides how it adds up."""

    works: tuple[tuple[int, Work], ...]
    place: Place
    system: System
    attention: Attention
    cure: str
    hides: bool
    steps: int
    schedule: str
    pipeline: int
    chunks: int
    doublings: int


def step_time(run: RunConfig, world_size: int, place: Place, *, system: System = MEGADS) -> StepTime:
    """Return how long a step of a derived ``run`` takes on ``world_size`` devices of ``place``.

    Raises:
        ConfigError: the device's peak is not known for the run's dtype.
    """
    lines = tuple(lines_of(case_of(run, world_size, place, system), fitted()))
    tokens = run.train.global_batch * run.model.seq_length
    peak = place.peak_tflops(run.train.dtype) * 1e12
    per_second = tokens / sum(line.seconds for line in lines) / (world_size * peak)
    flops = flops_per_token(run)
    full, causal = flops.full or flops.model, flops.causal or flops.model
    return StepTime(lines, tokens, world_size, full * per_second, causal * per_second)


def case_of(run: RunConfig, world_size: int, place: Place, system: System = MEGADS) -> Case:
    """Return all that a step's time depends on, besides the constants."""
    hides = system.hides_data
    passes = passes_of(run, world_size, system)
    return Case(
        works=tuple(works(run, world_size, place, system)),
        place=place,
        system=system,
        attention=attention_of(run, world_size, system),
        cure="" if passes is COMPILED else "compiled blocks",
        hides=choose(run, world_size).kind == "native" if hides is None else hides,
        steps=run.train.grad_acc_steps,
        schedule=schedule_of(run),
        pipeline=run.parallel.pipeline,
        chunks=virtual_stages(run),
        doublings=max(0, (world_size - 1) // place.per_host).bit_length(),
    )


def lines_of(case: Case, by: Constants) -> list[Line]:
    """Return the lines of a step."""
    speeds = speeds_of(case.place, case.attention, by)
    kinds = [(count, work, list(micro_batch(work, speeds, case.system, by, case.cure))) for count, work in case.works]
    times = [sum(line.seconds for line in lines) for _, _, lines in kinds]
    slowest = max(range(len(kinds)), key=times.__getitem__)
    _, work, lines = kinds[slowest]
    found = [Line(each.name, case.steps * each.seconds, each.kind, each.cure) for each in lines]
    found += once(work, speeds, case.system, by, times[slowest], case.steps, hides=case.hides)
    if case.pipeline > 1:
        others = sum(count * seconds for (count, _, _), seconds in zip(kinds, times, strict=True)) - times[slowest]
        idle = _idle(case, others, work, speeds)
        found.append(Line("idle: first and last micro-batches of the pipeline", idle, "idle", "more micro-batches"))
    if case.doublings:
        jitter = case.doublings * (by.jitter_fp8 if case.system.fp8 else by.jitter)
        seconds = jitter * sum(line.seconds for line in found)
        found.append(Line("idle: ranks wait for the slowest", seconds, "idle"))
    return found


def _idle(case: Case, others_s: float, work: Work, speeds: Speeds) -> float:
    """Return how long the slowest stage waits: micro-batches pass the other stages first and last."""
    waits = idle_time(case.schedule, case.pipeline, case.chunks, case.steps, THIRDS)
    messages = taken(work.pipe, speeds) / work.pipe.messages if work.pipe.messages else 0.0
    return float(waits) / (case.pipeline - 1) * others_s / case.chunks + 2 * (case.pipeline - 1) * messages
