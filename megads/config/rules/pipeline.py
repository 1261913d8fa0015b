"""Rules of the pipeline's schedule and of virtual stages."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.rules.advice import Change, Problem, divisors, each_of, multiples, nearest
from megads.config.rules.layout import LAYERS, PP, SPLIT, VIRTUAL
from megads.config.schema import RunConfig
from megads.config.stages import SPLIT_RANK, virtual_stages
from megads.families.decoder import spec_of

SCHEDULE, PER = "parallel.pipeline_schedule", "parallel.layers_per_virtual_stage"
NONE: Change = {VIRTUAL: 0, PER: 0}


def chunks(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that there is a pipeline to cut further, and that the two ways to say how agree."""
    grid, layers = run.parallel, spec_of(run.model).num_layers
    if grid.pipeline == 1 and grid.virtual_stages > 1:
        text = f"VIRTUAL_STAGES={grid.virtual_stages} are chunks of a pipeline's stages, and PP=1"
        yield Problem(text, [{VIRTUAL: 1}, {PP: 2}], overridable=(VIRTUAL,))
    per = grid.layers_per_virtual_stage
    if per and layers % (grid.pipeline * per):
        of_stage, rest = divmod(layers, grid.pipeline)
        shown = f"NLAYERS / PP = {layers} / {grid.pipeline}"
        why = f"{shown} is not a whole number" if rest else f"a stage has {shown} = {of_stage}"
        ways: list[Change] = [] if rest else each_of(PER, nearest(per, divisors(of_stage)))
        ways += [{LAYERS: each} for each in multiples(layers, grid.pipeline * per)]
        either: list[Change] = [{PER: 0, VIRTUAL: 2}] if layers >= 2 * grid.pipeline else []
        yield Problem(f"NUM_LAYERS_PER_VIRTUAL_STAGE={per} layers, and {why}", [*ways, *either], overridable=(PER,))
    elif per and grid.virtual_stages and grid.virtual_stages * per * grid.pipeline != layers:
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


RULES = (chunks, schedule)
