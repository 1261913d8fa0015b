"""How a model is cut into pipeline stages. Arithmetic only, no torch.

A model is a list of *steps*, see ``megads.families.spec``. A stage is a run of neighbouring
steps; the first always begins with the embedding and the last ends with the output. With virtual
stages it holds several runs, its chunks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from megads.config.schema import ModelConfig, RunConfig
from megads.errors import ConfigError
from megads.families.decoder import spec_of

SPLITS = ("layers", "ends", "parameters")
SPLIT_RANK = re.compile("rank:([0-9]{1,9})")
"""Of an encoder with a decoder: the first stage of the decoder."""


def virtual_stages(run: RunConfig) -> int:
    """Return how many chunks of layers each pipeline stage holds."""
    grid = run.parallel
    if grid.virtual_stages or not grid.layers_per_virtual_stage:
        return grid.virtual_stages or 1
    return max(1, spec_of(run.model).num_layers // (grid.pipeline * grid.layers_per_virtual_stage))


def schedule_of(run: RunConfig) -> str:
    """Return the pipeline's schedule, one of ``megads.config.pipeline.actions.SCHEDULES``."""
    given = run.parallel.pipeline_schedule
    return given if given != "auto" else "interleaved" if virtual_stages(run) > 1 else "1f1b"


def chunk_steps(run: RunConfig) -> tuple[tuple[range, ...], ...]:
    """Return the steps of every chunk of every pipeline stage. ``run`` is derived.

    The model is cut into ``PP x VIRTUAL_STAGES`` runs; chunk ``c`` of stage ``s`` is the run ``c PP + s``, as in
    Megatron-LM. ``PIPELINE_SPLIT`` says what is balanced: the number of layers, the number of layers with
    the embedding and the output as one layer each, or the parameters; of the cuts whose
    largest run is smallest, the most even one, with the lighter runs at the ends. A
    list of numbers gives the layers of each run. ``rank:N`` is Megatron-LM's split rank: the stages before N share
    the encoder's layers equally, the others the decoder's.

    Raises:
        ConfigError: more runs than layers, or a list that does not fit.
    """
    stages, found = run.parallel.pipeline, _runs(run)
    return tuple(found[stage::stages] for stage in range(stages))


def stage_steps(run: RunConfig) -> tuple[range, ...]:
    """Return the steps of every pipeline stage of a ``run`` without virtual stages, see :func:`chunk_steps`.

    Raises:
        ValueError: stages have several chunks.
    """
    if virtual_stages(run) > 1:
        raise ValueError("stages of several chunks are not one range of steps; chunk_steps has them")
    return tuple(chunks[0] for chunks in chunk_steps(run))


def _runs(run: RunConfig) -> tuple[range, ...]:
    """Return the steps of every virtual stage, in the order of the model."""
    layers, chunks = spec_of(run.model).num_layers, virtual_stages(run)
    stages = run.parallel.pipeline * chunks
    split = run.parallel.pipeline_split
    if match := SPLIT_RANK.fullmatch(split):
        split = _of_parts(run.model, stages, int(match[1]))
    if split not in SPLITS:
        return _listed(split, run.parallel.pipeline, chunks, layers)
    if stages == 1:
        return (range(layers + 2),)
    if stages > layers:
        raise _too_many(run.parallel.pipeline, chunks, layers, layers)
    weights = {
        "layers": (0, *[1] * layers, 0),
        "ends": (1, *[1] * layers, 1),
        "parameters": tuple(step_parameters(run.model)),
    }[split]
    return tuple(itertools.starmap(range, itertools.pairwise(balanced_cuts(weights, stages))))


def split_ranks(model: ModelConfig, stages: int) -> list[int]:
    """Return where the stages of a decoder may begin, so that those of it, and of its encoder, have equal layers."""
    ranks = range(1, stages)
    return [each for each in ranks if model.num_layers % each == 0 and model.decoder_layers % (stages - each) == 0]


def _of_parts(model: ModelConfig, stages: int, rank: int) -> str:
    """Return the list of layers of a split rank."""
    given = f"PIPELINE_SPLIT=rank:{rank}"
    if not model.decoder_layers:
        raise ConfigError(
            f"{given} is a split rank, where the stages of a decoder begin, and MODEL_FAMILY={model.family} has no "
            "encoder before it; use PIPELINE_SPLIT=layers"
        )
    if stages == 1:
        return "layers"
    fitting = split_ranks(model, stages)
    if rank not in fitting:
        hint = " or ".join(f"rank:{each}" for each in fitting) or "layers"
        shares = f"NLAYERS={model.num_layers} layers over {rank} and DECODER_LAYERS={model.decoder_layers} over "
        shares += f"{stages - rank} stages" if rank < stages else "no stage"
        raise ConfigError(f"{given} shares {shares} of PP={stages}, not equally; use PIPELINE_SPLIT={hint}")
    counts = [model.num_layers // rank] * rank + [model.decoder_layers // (stages - rank)] * (stages - rank)
    return ",".join(map(str, counts))


def step_parameters(model: ModelConfig, tensor: int = 1) -> list[int]:
    """Return the parameters of every step on one of ``tensor`` tensor-parallel ranks.

    A tied output counts in the last step as well, where a copy is held when the two are on
    different stages.
    """
    return spec_of(model).step_sizes(tensor)


def stages_text(stages: int, chunks: int) -> str:
    """Return ``PP=4 stages``, or ``PP=4 x VIRTUAL_STAGES=2 = 8 virtual stages``."""
    if chunks == 1:
        return f"PP={stages} stages"
    return f"PP={stages} x VIRTUAL_STAGES={chunks} = {stages * chunks} virtual stages"


def _too_many(stages: int, chunks: int, layers: int, most: int) -> ConfigError:
    fewer = f"VIRTUAL_STAGES={most // stages}" if stages <= most and chunks > 1 else f"PP={most}"
    return ConfigError(
        f"{stages_text(stages, chunks)} cannot share NLAYERS={layers} layers; use {fewer} or less, or more layers"
    )


def _listed(split: str, pipeline: int, chunks: int, layers: int) -> tuple[range, ...]:
    """Return the virtual stages that a list such as ``6,8,8,6`` describes."""
    stages = pipeline * chunks
    words = [word.strip() for word in split.split(",")]
    split = split if len(split) <= 60 else f"{split[:57]}..."
    if not all(re.fullmatch("-?[0-9]{1,18}", word) for word in words):
        raise ConfigError(f"PIPELINE_SPLIT={split!r} is not {', '.join(SPLITS)} or a list of layers such as 6,8,8,6")
    counts = [int(word) for word in words]
    # The ends hold the embedding and the output, so they may do without a layer.
    if stages > layers + 2:
        raise _too_many(pipeline, chunks, layers, layers + 2)
    empty = min(counts) < 0 or 0 in counts[1:-1]
    if len(counts) != stages or sum(counts) != layers or empty:
        share = ",".join(map(str, _even_share(layers, stages)))
        raise ConfigError(
            f"PIPELINE_SPLIT={split} must list the layers of each of {stages_text(pipeline, chunks)}, "
            f"NLAYERS={layers} in total; use e.g. PIPELINE_SPLIT={share}"
        )
    cuts = [0, *(1 + sum(counts[:stage]) for stage in range(1, stages)), layers + 2]
    return tuple(itertools.starmap(range, itertools.pairwise(cuts)))


def _even_share(layers: int, stages: int) -> list[int]:
    """Return an even number of layers for each stage; what is missing is missing at the ends."""
    if stages > layers:
        return [0, *[1] * layers, *[0] * (stages - layers - 1)]
    cuts = balanced_cuts((0, *[1] * layers, 0), stages)
    counts = [after - start for start, after in itertools.pairwise(cuts)]
    counts[0] -= 1  # the embedding
    counts[-1] -= 1  # the output
    return counts


@cache
def balanced_cuts(weights: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Return ``parts + 1`` positions that cut ``weights`` into non-empty runs.

    The largest sum is as small as it can be; then the sum of squares; then what the first
    and the last run hold.
    """
    before = tuple(itertools.accumulate(weights, initial=0))
    limit = _smallest_maximum(before, parts)
    size = len(weights)
    # best[end]: cost of cutting weights[:end] into the runs so far, and where they were cut, the last first.
    best: dict[int, tuple[int, int, tuple[Any, ...]]] = {0: (0, 0, ())}
    for part in range(parts):
        reached: dict[int, tuple[int, int, tuple[Any, ...]]] = {}
        is_end = part in (0, parts - 1)
        least = before[-1] - limit * (parts - part - 1)  # what the other runs cannot hold
        for start, (squares, ends, cuts) in best.items():
            for end in range(start + 1, size - (parts - part - 1) + 1):
                load = before[end] - before[start]
                if load > limit:
                    break
                if before[end] < least:
                    continue
                cost = (squares + load * load, ends + load * is_end, (end, cuts))
                if end not in reached or cost[:2] < reached[end][:2]:
                    reached[end] = cost
        best = reached
    found, cuts = [0], best[size][2]
    while cuts:
        found.insert(1, cuts[0])
        cuts = cuts[1]
    return tuple(found)


def _smallest_maximum(before: Sequence[int], parts: int) -> int:
    """Return the smallest largest sum of ``parts`` non-empty runs, by bisection."""
    steps = [after - start for start, after in itertools.pairwise(before)]
    low, high = max(steps), before[-1]
    while low < high:
        middle = (low + high) // 2
        if _runs_needed(steps, middle) <= parts:
            high = middle
        else:
            low = middle + 1
    return low


def _runs_needed(steps: Sequence[int], limit: int) -> int:
    runs, load = 1, 0
    for step in steps:
        if load + step > limit:
            runs, load = runs + 1, 0
        load += step
    return runs
