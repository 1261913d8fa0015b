"""The timeline of a planned pipeline: a simulated step with the times that a plan predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.config.pipeline.actions import actions
from megads.config.pipeline.clock import Costs, Wire, simulate
from megads.config.pipeline.repeating import ends_of, stage_ends
from megads.config.pipeline.step import Closing, end_of_step
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of, virtual_stages
from megads.plan.memory import stages
from megads.plan.pipeline import pass_shares, work_shares
from megads.plan.places.place import Place
from megads.plan.time.step import StepTime
from megads.plan.traffic import SEND, traffic

MOST_BLOCKS, MOST_STAGES = 3000, 32
NAMES = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradients",
    "reduce": "gradient reduction",
    "optimizer": "optimizer",
}
"""Kinds of blocks."""


@dataclass(frozen=True)
class Block:
    """What a stage does, from a start to an end in seconds."""

    kind: str
    micro_batch: int  # -1: of none
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PlannedTimeline:
    """A step of a pipeline, its first stages and micro-batches.

    Attributes:
        stages: blocks of each stage that is shown.
        micro_batches: that are shown; ``of_micro_batches`` has the step.
        of_stages: of the pipeline.
        length_s: of the part that is shown.
        step_s: of the whole step, simulated.
        idle: share of the whole step's passes in which stages wait, on average.
        predicted_s: of the whole step in the table, with all messages, of which none hides; 0: not known.
    """

    schedule: str
    stages: tuple[tuple[Block, ...], ...]
    micro_batches: int
    of_micro_batches: int
    of_stages: int
    length_s: float
    step_s: float
    idle: float
    predicted_s: float = 0.0


def timeline_of(run: RunConfig, time: StepTime, place: Place) -> PlannedTimeline | None:
    """Return the timeline of a derived ``run`` whose step takes ``time``; None: it has no pipeline.

    The seconds of a micro-batch are those of the slowest stage, those of the others by their matrix products.
    """
    grid, steps, chunks = run.parallel, run.train.grad_acc_steps, virtual_stages(run)
    if grid.pipeline == 1:
        return None
    costs, closing = _costs(run, time, place)
    sizes = (schedule_of(run), grid.pipeline, chunks)
    shown = _shown(grid.pipeline, chunks, steps)
    timeline = simulate(actions(*sizes, shown), costs)
    closings = [closing] * grid.pipeline
    end = end_of_step(stage_ends(timeline), closings, norm=0)
    whole = ends_of(*sizes, steps, costs, most=MOST_BLOCKS * 4)
    step = end_of_step(whole, closings, norm=0)
    rows = []
    for stage, spans in enumerate(timeline.stages[: max(4, min(MOST_STAGES, MOST_BLOCKS // len(timeline.stages[0])))]):
        row = [
            Block(span.action.kind, span.action.micro_batch, span.action.chunk, float(span.start), float(span.end))
            for span in spans
        ]
        after = [("reduce", each) for each in end.reductions[stage]] + [("optimizer", end.updates[stage])]
        row += [Block(kind, -1, 0, float(at.start), float(at.end)) for kind, at in after if at.end > at.start]
        rows.append(tuple(row))
    idle = 1 - sum(float(each.busy) for each in whole) / (grid.pipeline * float(step.passes))
    return PlannedTimeline(
        *(sizes[0], tuple(rows), shown, steps, grid.pipeline),
        *(float(end.length), float(step.length), idle, time.step_s),
    )


def _shown(pipeline: int, chunks: int, steps: int) -> int:
    """Return how many micro-batches are shown: all, or rounds that fit."""
    each = min(pipeline, MOST_STAGES) * chunks * 3
    if steps * each <= MOST_BLOCKS and steps <= 4 * pipeline:
        return steps
    rounds = max(1, min(MOST_BLOCKS // each, 3 * pipeline) // pipeline)
    return min(steps, rounds * pipeline)


def _costs(run: RunConfig, time: StepTime, place: Place) -> tuple[Costs, Closing]:
    """Return the times of passes and messages in seconds, and those of the end of a step."""
    chunks = virtual_stages(run)
    repeated = [line for line in time.lines if not line.is_once and line.kind != "idle" and not _is_pipe(line.name)]
    micro_s = sum(line.seconds for line in repeated) / run.train.grad_acc_steps
    work = work_shares(run)
    slowest = max(map(sum, work))
    forward, backward, weight = (share * micro_s / slowest for share in pass_shares(run))
    passes = tuple(tuple((forward * each, backward * each, weight * each) for each in row) for row in work)
    reduce_s = sum(line.seconds for line in time.lines if line.is_once and line.kind == "communication")
    update_s = sum(line.seconds for line in time.lines if line.is_once and line.kind != "communication")
    closing = Closing(tuple([reduce_s / chunks] * chunks) if reduce_s else (), is_hidden=False, optimizer=update_s)
    wires = tuple(_wires(run, time.world_size, place))
    return Costs(passes=passes, wires=wires), closing


def _is_pipe(name: str) -> bool:
    return name.startswith("communication, pipe")


def _wires(run: RunConfig, world_size: int, place: Place) -> Iterator[Wire]:
    """Yield what a message of every boundary takes, over what joins the ranks of both stages."""
    pipeline = run.parallel.pipeline
    sends = next(each for each in traffic(run, world_size, next(stages(run))) if each.kind == SEND)
    ranks = world_size // pipeline  # of a stage, next to each other
    for virtual in range(pipeline * virtual_stages(run) - 1):
        low, high = sorted((virtual % pipeline, (virtual + 1) % pipeline))
        first, last = low * ranks, (high + 1) * ranks - 1
        joined = (each for each in place.levels if each.ranks and first // each.ranks == last // each.ranks)
        level = next(joined, place.levels[-1])
        yield Wire(sends.num_bytes / (level.gb_s * 1e9), level.latency_s)
