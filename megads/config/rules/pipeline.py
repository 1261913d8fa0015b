"""Rules of the pipeline's schedule and of virtual stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megads.config.rules.advice import LARGEST_ADVICE, Change, Problem, divisors, each_of, multiples, nearest
from megads.config.rules.layout import LAYERS, PP, SPLIT, VIRTUAL
from megads.config.schema import RunConfig
from megads.config.stages import SPLIT_RANK, virtual_stages
from megads.config.tree import value_of
from megads.families.decoder import spec_of

SCHEDULE, PER = "parallel.pipeline_schedule", "parallel.layers_per_virtual_stage"
NONE: Change = {VIRTUAL: 0, PER: 0}
"""Whole stages."""


def pipelined(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that there is a pipeline whose stages can be cut further."""
    grid = run.parallel
    if grid.pipeline > 1 or virtual_stages(run) == 1:
        return
    asked = [(VIRTUAL, "VIRTUAL_STAGES"), (PER, "NUM_LAYERS_PER_VIRTUAL_STAGE")]
    given = [(name, shown, value) for name, shown in asked if (value := value_of(run, name))]
    text = " and ".join(f"{shown}={value}" for _, shown, value in given)
    off: dict[str, Any] = {name: 0 for name, _, _ in given}
    if grid.pipeline_schedule == "interleaved":
        off[SCHEDULE] = "auto"
    yield Problem(f"{text}: chunks of a pipeline's stages, and PP=1", [off, {PP: 2}], overridable=(VIRTUAL, PER))


def layers_of_chunks(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that chunks of so many layers fill a stage."""
    grid, layers = run.parallel, spec_of(run.model).num_layers
    per = grid.layers_per_virtual_stage
    if not per or layers % (grid.pipeline * per) == 0:
        return
    of_stage, rest = divmod(layers, grid.pipeline)
    shown = f"NLAYERS / PP = {layers} / {grid.pipeline}"
    why = f"{shown} is not a whole number" if rest else f"a stage has {shown} = {of_stage}"
    ways: list[Change] = [] if rest else each_of(PER, nearest(per, divisors(of_stage)))
    ways += [{LAYERS: each} for each in multiples(layers, grid.pipeline * per) if each <= LARGEST_ADVICE]
    ways += [{PER: 0}] if grid.virtual_stages else [{PER: 0, VIRTUAL: 2}, {PER: 0}]
    yield Problem(f"NUM_LAYERS_PER_VIRTUAL_STAGE={per} layers, and {why}", ways, overridable=(PER,))


def chunks(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the two ways to say how many chunks a stage has agree."""
    grid, layers = run.parallel, spec_of(run.model).num_layers
    per = grid.layers_per_virtual_stage
    if not (per and grid.virtual_stages) or grid.virtual_stages * per * grid.pipeline == layers:
        return
    text = (
        f"VIRTUAL_STAGES={grid.virtual_stages} and NUM_LAYERS_PER_VIRTUAL_STAGE={per} contradict each other: "
        f"NLAYERS={layers} / (PP={grid.pipeline} x {per}) = {layers // (grid.pipeline * per)}"
    )
    yield Problem(text, [{PER: 0}, {VIRTUAL: 0}], overridable=(PER, VIRTUAL))


def schedule(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the schedule has the chunks it is for."""
    grid, count = run.parallel, virtual_stages(run)
    named, virtual = f"PIPELINE_SCHEDULE={grid.pipeline_schedule}", f"VIRTUAL_STAGES={count}"
    if grid.pipeline_schedule in ("interleaved", "zb-h1") and grid.pipeline == 1:
        text = f"{named} is an order of a pipeline's stages, and PP=1"
        yield Problem(text, [{SCHEDULE: "auto"}, {PP: 2}], overridable=(SCHEDULE,))
    elif grid.pipeline_schedule == "interleaved" and count == 1:
        two: list[Change] = [{VIRTUAL: 2}] if spec_of(run.model).num_layers >= 2 * grid.pipeline else []
        text = f"{named} is for virtual stages, and {virtual}"
        yield Problem(text, [*two, {SCHEDULE: "1f1b"}], overridable=(SCHEDULE,))
    elif grid.pipeline_schedule in ("1f1b", "zb-h1") and count > 1:
        text = f"{named} has one chunk of layers per stage, and {virtual}"
        yield Problem(text, [{SCHEDULE: "interleaved"}, NONE], overridable=(SCHEDULE,))
    if SPLIT_RANK.fullmatch(grid.pipeline_split) and count > 1:
        text = f"PIPELINE_SPLIT={grid.pipeline_split} is a split rank, whose stages have one chunk each, and {virtual}"
        yield Problem(text, [{SPLIT: "layers"}, NONE], overridable=(SPLIT,))


RULES = (pipelined, layers_of_chunks, chunks, schedule)
