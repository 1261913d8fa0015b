"""What every pipeline stage does in one step, in order. Pure functions of the schedule and its sizes.

A *chunk* is a run of neighbouring layers; stage ``s`` of ``p`` holds chunks 0 to ``v - 1``, and its chunk ``c`` is
virtual stage ``c p + s`` of ``v p``, as in Megatron-LM. A micro-batch goes through all virtual stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from megads.errors import ConfigError

SCHEDULES = ("1f1b", "interleaved", "zb-h1")


@dataclass(frozen=True)
class Action:
    """Forward (F), backward (B) or weight gradients (W) of a micro-batch through one chunk of a stage.

    B is the whole backward pass, or that of the inputs where the schedule has W.
    """

    kind: Literal["F", "B", "W"]
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}.{self.chunk}"


def actions(schedule: str, stages: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of every stage, in order.

    * ``1f1b`` (arXiv 2104.04473): after ``p - s - 1`` forwards, one forward and one backward in turn.
    * ``interleaved`` (the same): micro-batches go through the chunks in groups of about ``p``. Stage ``s`` begins with
      ``2 (p - s - 1) + (v - 1) group`` forwards. Megatron-LM demands a multiple of ``p`` micro-batches; here the
      groups of any other number are as even as they can be, the larger ones first.
    * ``zb-h1`` (arXiv 2401.10241): ``1f1b`` whose weight gradients wait; stage ``s`` computes those of a micro-batch
      after the backward pass of the ``s``-th one after it.

    Raises:
        ConfigError: the schedule does not exist, or not for so many chunks.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"pipeline schedule {schedule!r} is not one of {', '.join(SCHEDULES)}")
    if min(stages, chunks, micro_batches) < 1:
        raise ConfigError(
            f"a pipeline of {stages} stages, {chunks} chunks and {micro_batches} micro-batches; each must be 1 or more"
        )
    if (chunks > 1) != (schedule == "interleaved"):
        number = "2 or more chunks per stage" if schedule == "interleaved" else "one chunk per stage"
        raise ConfigError(f"pipeline schedule {schedule} has {number}, not {chunks}")
    return [list(_of_stage(schedule, stages, chunks, micro_batches, stage)) for stage in range(stages)]


def groups_of(micro_batches: int, stages: int) -> list[range]:
    """Return the groups of micro-batches that go through a stage's chunks together: about ``stages`` in each."""
    count = max(1, micro_batches // stages)
    size, more = divmod(micro_batches, count)
    starts = [group * size + min(group, more) for group in range(count + 1)]
    return [range(start, starts[group + 1]) for group, start in enumerate(starts[:-1])]


def warm_up(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int) -> int:
    """Return the forwards of a stage before its first pair of a forward and a backward."""
    after = stages - stage - 1
    if schedule == "interleaved":
        after = 2 * after + (chunks - 1) * len(groups_of(micro_batches, stages)[0])
    return min(after, chunks * micro_batches)


def _of_stage(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int) -> Iterator[Action]:
    groups = groups_of(micro_batches, stages)
    passes = [(chunk, each) for group in groups for chunk in range(chunks) for each in group]
    first = warm_up(schedule, stages, chunks, micro_batches, stage)
    for chunk, each in passes[:first]:
        yield Action("F", chunk, each)
    waiting: list[Action] = []
    for index, (chunk, each) in enumerate(passes):
        if index + first < len(passes):
            yield Action("F", *passes[index + first])
        yield Action("B", chunks - 1 - chunk, each)
        if schedule == "zb-h1":
            waiting.append(Action("W", chunk, each))
            if index >= stage:
                yield waiting.pop(0)
    yield from waiting


def problem_of(orders: Sequence[Sequence[Action]], chunks: int, micro_batches: int) -> str:
    """Return what is wrong with the actions of all stages, empty where they are a schedule.

    Every stage has each micro-batch once as F and once as B in every chunk, as W in all or none, in an order in which
    it can do them; and no stage waits forever for another one.
    """
    wanted = {(chunk, each) for chunk in range(chunks) for each in range(micro_batches)}
    for stage, order in enumerate(orders):
        done: dict[str, list[tuple[int, int]]] = {"F": [], "B": [], "W": []}
        for action in order:
            place = (action.chunk, action.micro_batch)
            before = {"F": None, "B": "F", "W": "B"}[action.kind]
            if before is not None and place not in done[before]:
                return f"stage {stage}: {action} before its {before}"
            done[action.kind].append(place)
        for kind, places in done.items():
            if kind == "W" and not places:
                continue
            if sorted(places) != sorted(wanted):
                return (
                    f"stage {stage}: {kind} of {len(places)} chunks of micro-batches, not of each of {len(wanted)} once"
                )
    left = _blocked(orders)
    return f"stages wait for each other at {', '.join(left)}" if left else ""


def needs(action: Action, stage: int, stages: int, chunks: int) -> tuple[int, Action] | None:
    """Return whose result ``action`` of ``stage`` waits for: a stage and its action; None: nobody's."""
    virtual = action.chunk * stages + stage
    if action.kind == "W":
        return None
    other = virtual - 1 if action.kind == "F" else virtual + 1
    if not 0 <= other < stages * chunks:
        return None
    return other % stages, Action(action.kind, other // stages, action.micro_batch)


def chunks_of(orders: Sequence[Sequence[Action]]) -> int:
    """Return the chunks of a stage."""
    return max(action.chunk for action in orders[0]) + 1


def _blocked(orders: Sequence[Sequence[Action]]) -> list[str]:
    """Return the actions that never can begin, of every stage the first."""
    stages, chunks = len(orders), chunks_of(orders)
    done: list[set[Action]] = [set() for _ in orders]
    at = [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                other = needs(order[at[stage]], stage, stages, chunks)
                if other is not None and other[1] not in done[other[0]]:
                    break
                done[stage].add(order[at[stage]])
                at[stage] += 1
                moved = True
    return [f"{order[at[stage]]} of stage {stage}" for stage, order in enumerate(orders) if at[stage] < len(order)]


@cache
def in_flight(
    schedule: str, stages: int, chunks: int, micro_batches: int, stage: int
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return what a stage holds when it holds most: the micro-batches of each chunk between F and B, and B and W.

    Every entry is a moment after which something is freed; no other has more of everything.
    """
    groups = 4  # later ones repeat
    if micro_batches > groups * stages:
        micro_batches = groups * stages + micro_batches % stages
    forward, waiting = [0] * chunks, [0] * chunks
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    splits = schedule == "zb-h1"
    for action in _of_stage(schedule, stages, chunks, micro_batches, stage):
        if action.kind == "F":
            forward[action.chunk] += 1
            continue
        found[tuple(forward), tuple(waiting)] = None
        if action.kind == "B":
            forward[action.chunk] -= 1
            waiting[action.chunk] += splits
        else:
            waiting[action.chunk] -= 1
    return tuple(found)
