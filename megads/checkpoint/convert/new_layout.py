"""The layout that a checkpoint is to have: whether its model can have it, and what each rank owns then. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.tensors import parameters_of
from megads.comm.grid import Grid
from megads.config.rules import layout as layout_rules
from megads.config.rules.advice import Attempt, Change, Layout, Problem, put, refusal
from megads.config.schema import ModelConfig, ParallelConfig, RunConfig
from megads.config.setting import Origin
from megads.config.stages import SPLITS, stage_steps
from megads.errors import CheckpointError, ConfigError
from megads.families.decoder import spec_of

OPTIONS = {
    "parallel.tensor": "--tp",
    "parallel.pipeline": "--pp",
    "parallel.sequence": "--sp",
    "parallel.data": "--dp",
    "parallel.zero_stage": "--zero-stage",
    "parallel.pipeline_split": "--pipeline-split",
}
_RULES = (layout_rules.tensor, layout_rules.stages, layout_rules.sequence, layout_rules.zero)
_MOST_RANKS = 1 << 17
_ALIGNED = 2
"""ZeRO 1 and 2 give each rank a multiple of this of a group of parameters laid end to end."""


@dataclass(frozen=True)
class Share:
    """A run of a parameter that one file gets."""

    name: str
    cut: ShardLayout
    first: int
    count: int


def layout_text(had: Mapping[str, int]) -> str:
    """Return a manifest's layout as ``TP=2 x PP=1 x SP=1 x DP=4, ZeRO 1``."""
    return f"TP={had['tensor']} x PP={had['pipe']} x SP={had['seq']} x DP={had['data']}, ZeRO {had['zero_stage']}"


def target_of(manifest: Manifest, **wanted: int | str | None) -> RunConfig:
    """Return a run of a checkpoint's model in a wanted layout.

    Args:
        manifest: of the checkpoint.
        wanted: ``tensor``, ``pipeline``, ``sequence``, ``data``, ``zero_stage``,
            ``pipeline_split``; None: as the checkpoint has it.

    Raises:
        ConfigError: the model cannot be laid out so; the line says what would work.
        CheckpointError: the model is of a later version of megads.
    """
    had, settings = manifest.layout, manifest.settings
    given = {name: value for name, value in wanted.items() if value is not None}
    layout = {
        "tensor": had["tensor"],
        "pipeline": had["pipe"],
        "sequence": had["seq"],
        "data": had["data"],
        "zero_stage": had["zero_stage"],
        "pipeline_split": settings.get("parallel", {}).get("pipeline_split", "layers"),
        **given,
    }
    if "pipeline_split" not in given and layout["pipeline"] != had["pipe"] and layout["pipeline_split"] not in SPLITS:
        layout["pipeline_split"] = "layers"  # the list was of other stages
    model = {key: value for key, value in manifest.model.items() if key in ModelConfig.model_fields}
    # Nothing in a checkpoint depends on the length of the samples.
    model["seq_length"] = settings.get("model", {}).get("seq_length", layout["sequence"])
    try:
        run = RunConfig(model=ModelConfig(**model), parallel=ParallelConfig(**layout))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"the checkpoint's {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    ranks = run.parallel.tensor * run.parallel.pipeline * run.parallel.sequence * run.parallel.data
    if ranks > (most := min(_MOST_RANKS, sum(math.prod(cut.shape) for cut in manifest.tensors.values()))):
        text = layout_text({**layout, "pipe": layout["pipeline"], "seq": layout["sequence"]})
        raise ConfigError(f"{text}: is {ranks} ranks, each with a file of its own; at most {most} for this checkpoint")
    problem = _problem_of(run)
    if problem is not None:
        raise ConfigError(refusal(problem, _attempt(run)))
    if odd := sorted(manifest.tensors.items() ^ parameters_of(run.model).items(), key=lambda each: each[0]):
        raise CheckpointError(
            f"the checkpoint's {odd[0][0]} is not what its model has; another version of megads wrote it"
        )
    return run


def _problem_of(run: RunConfig) -> Problem | None:
    for rule in _RULES:
        for problem in rule(run, 1):
            # The model is what it is; only its layout can be another.
            ways = [way for way in problem.ways if way.keys() <= OPTIONS.keys()]
            return replace(problem, ways=ways, rule=rule.__name__)
    return None


def _attempt(run: RunConfig) -> Attempt:
    def derive(change: Change) -> Layout:
        changed = put(run, change)
        return Layout(changed, 1, 1, _problem_of(changed))

    return Attempt(derive, {name: Origin("cli", option) for name, option in OPTIONS.items()})


def grid_of(run: RunConfig) -> Grid:
    """Return the grid of ranks that :func:`target_of` wants."""
    grid = run.parallel
    return Grid(pipe=grid.pipeline, data=grid.data, seq=grid.sequence, tensor=grid.tensor)


def shares_of(run: RunConfig) -> list[list[Share]]:
    """Return what every rank's file holds: each number of the model in one of them, and in its owner's.

    A pipeline stage owns the parameters of its steps, a tied embedding the first. What is whole on
    every tensor-parallel rank is in the file of the first. Ranks of data x seq share evenly
    as the ZeRO stage does: 0 and 3 each parameter, 1 and 2 matrices and vectors laid end to end.
    """
    grid, stages, parameters = grid_of(run), stage_steps(run), list(spec_of(run.model).parameters())
    size = grid.data * grid.seq
    flat = run.parallel.zero_stage in (1, 2)
    files = []
    for rank in range(grid.world_size):
        at = grid.coordinate(rank)
        tensor, place = at["tensor"], at["data"] * grid.seq + at["seq"]
        owned = {
            each.name: ShardLayout(each.shape, each.dim, each.parts, tensor, grid.tensor)
            for each in parameters
            if each.step in stages[at["pipe"]]
        }
        groups = _together(owned) if flat else [[each] for each in owned.items()]
        shares = [share for group in groups for share in _cut_evenly(group, place, size, _ALIGNED if flat else 1)]
        files.append([share for share in shares if tensor == 0 or not share.cut.is_whole])
    return files


def _together(owned: Mapping[str, ShardLayout]) -> list[list[tuple[str, ShardLayout]]]:
    """Return the optimizer's groups: matrices decay, vectors do not."""
    matrices = [each for each in owned.items() if len(each[1].shape) > 1]
    vectors = [each for each in owned.items() if len(each[1].shape) <= 1]
    return [matrices, vectors]


def _cut_evenly(group: Sequence[tuple[str, ShardLayout]], place: int, size: int, aligned: int) -> Iterator[Share]:
    """Yield the ``place``-th of ``size`` even shares of parameters laid end to end."""
    total = sum(cut.count for _, cut in group)
    step = -(-total // (size * aligned)) * aligned
    begin, end = place * step, (place + 1) * step
    start = 0
    for name, cut in group:
        first, last = max(begin - start, 0), min(end - start, cut.count)
        if first < last:
            yield Share(name, cut, first, last - first)
        start += cut.count
