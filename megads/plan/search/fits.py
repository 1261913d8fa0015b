"""Which pipeline stage needs most memory, and how much."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.schema import RunConfig
from megads.plan.memory import Memory, _of_stage, stage_memories, stages
from megads.plan.parts.activations import Stage


def fullest(run: RunConfig, world_size: int) -> tuple[Memory, int]:
    """Return the memory of the fullest pipeline stage of a derived ``run``, and its number, by a look at few stages."""
    found = [(_of_stage(run, world_size, stage), stage.index) for stage in distinct(run)]
    return max(found, key=lambda each: each[0].total)


def fullest_of_all(run: RunConfig, world_size: int) -> tuple[Memory, int]:
    """Return the same of all stages; under zb-h1 one in the middle can be fuller than the first and the last."""
    found = stage_memories(run, world_size)
    stage = max(range(len(found)), key=lambda index: found[index].total)
    return found[stage], stage


def of_first_stage(run: RunConfig, world_size: int) -> Memory:
    """Return the memory of the first stage, which keeps most micro-batches; the fullest needs at least as much."""
    return _of_stage(run, world_size, next(stages(run)))


def distinct(run: RunConfig) -> Iterator[Stage]:
    """Yield the stages of which one is the fullest: of stages that hold as much the first and the last.

    Micro-batches in flight fall from stage to stage; weight gradients that wait (zb-h1) rise.
    """
    groups: dict[tuple[object, ...], list[Stage]] = {}
    for stage in stages(run):
        key = (tuple(map(len, stage.runs)), stage.has_embedding, stage.has_head)
        groups.setdefault(key, []).append(stage)
    for group in groups.values():
        yield group[0]
        if len(group) > 1:
            yield group[-1]
