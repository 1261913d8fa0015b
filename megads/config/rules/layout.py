"""Rules of the layout: which degrees a model can be split into, and which go together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from megads.config.engine_choice import choose
from megads.config.rules.advice import LARGEST_ADVICE, Change, Problem, divisors, each_of, multiples, nearest
from megads.config.schema import RunConfig
from megads.config.sizes import layout_text, model_degree
from megads.config.stages import SPLIT_RANK, SPLITS, chunk_steps, split_ranks, stages_text, virtual_stages
from megads.config.tree import value_of
from megads.errors import ConfigError
from megads.families.decoder import padded_vocab_size, spec_of
from megads.text.plural import plural

TP, PP, SP, ZERO = "parallel.tensor", "parallel.pipeline", "parallel.sequence", "parallel.zero_stage"
SPLIT, SEQ, LAYERS = "parallel.pipeline_split", "model.seq_length", "model.num_layers"
VIRTUAL = "parallel.virtual_stages"
MOST_CUT = 2000
"""Layers that are cut into stages; the search for the best cut takes their square."""


def problem_of_ranks(run: RunConfig, num_hosts: int, world_size: int) -> Problem | None:
    """Return what is wrong if the ranks cannot be split into the degrees that are given."""
    grid, used, layout = run.parallel, model_degree(run), layout_text(run)
    ranks = "launch.ranks_per_host"
    if world_size % used:
        more = [{ranks: each} for each in multiples(world_size, used)] if num_hosts == 1 else []
        return Problem(
            f"{plural(world_size, 'rank')} cannot be split into {layout} (= {used})",
            chain(_splits(run, world_size), more),
            "" if num_hosts == 1 else f"a multiple of {used} ranks",
            rule="ranks",
        )
    data = world_size // used
    if grid.data not in (0, data):
        ways: list[Change] = [{"parallel.data": data}]
        if num_hosts == 1:
            ways.append({ranks: used * grid.data})
        return Problem(f"DP={grid.data}, but {world_size} ranks / ({layout}) = {data}", ways, rule="data")
    return None


def _splits(run: RunConfig, world_size: int) -> Iterator[Change]:
    """Yield degrees that divide ``world_size``, the nearest to those of ``run`` first."""
    names = (TP, PP, SP)
    given = tuple(value_of(run, name) for name in names)
    found = []
    for tensor in divisors(world_size):
        for pipeline in divisors(world_size // tensor):
            for sequence in divisors(world_size // (tensor * pipeline)):
                degrees = (tensor, pipeline, sequence)
                if all(new == 1 for new, old in zip(degrees, given, strict=True) if old == 1):
                    found.append(degrees)

    def distance(degrees: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        ratios = [abs(math.log(new / old)) for new, old in zip(degrees, given, strict=True)]
        return sum(ratio > 0 for ratio in ratios), sum(ratios), degrees

    for degrees in sorted(found, key=distance):
        yield {name: new for name, new, old in zip(names, degrees, given, strict=True) if new != old}


def tensor(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that every tensor rank gets the same share of every split width."""
    model, degree = run.model, run.parallel.tensor
    sizes = {
        "model.num_heads": ("HEADS", model.num_heads),
        "model.num_kv_heads": ("NUM_KV_HEAD", model.num_kv_heads),
        "model.ffn_hidden_size": ("FFN_HIDDEN_SIZE", model.ffn_hidden_size),
    }
    fitting = each_of(TP, nearest(degree, divisors(math.gcd(*(size for _, size in sizes.values())))))
    for setting, (name, size) in sizes.items():
        if size % degree:
            few = ": key/value heads are not replicated" if setting == "model.num_kv_heads" and size < degree else ""
            text = f"{name}={size} cannot be split over TP={degree} ranks{few}"
            yield Problem(text, [*fitting, *each_of(setting, multiples(size, degree))])
    vocab = padded_vocab_size(model)
    if vocab % degree:
        multiple = math.lcm(model.vocab_multiple, degree)
        yield Problem(
            f"the vocabulary of {model.vocab_size}, padded to {vocab} (VOCAB_MULTIPLE={model.vocab_multiple}), "
            f"cannot be split over TP={degree} ranks",
            [{"model.vocab_multiple": multiple}, *fitting],
        )


def stages(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the layers can be cut into the pipeline's stages."""
    count, layers, split = run.parallel.pipeline, spec_of(run.model).num_layers, run.parallel.pipeline_split
    chunks = virtual_stages(run)
    text = stages_text(count, chunks)
    if count * chunks > layers:
        equal: Change = {} if split in SPLITS else {SPLIT: "layers"}
        yield Problem(f"{text} cannot share NLAYERS={layers} layers", _fewer_stages(run, equal))
        return
    if count * chunks > 1 and layers > MOST_CUT:
        text = f"NLAYERS={layers} layers are too many to split into {text} (at most {MOST_CUT})"
        yield Problem(text, [{PP: 1}, {LAYERS: MOST_CUT // count * count}])
    elif count * chunks > 1 or split not in SPLITS:
        try:
            chunk_steps(run)
        except ConfigError as error:
            yield Problem(str(error).partition("; use")[0], _other_splits(run))


def _fewer_stages(run: RunConfig, equal: Change) -> Iterator[Change]:
    """Yield fewer chunks of a stage and fewer stages for the layers there are, then enough layers."""
    count, layers, chunks = run.parallel.pipeline, spec_of(run.model).num_layers, virtual_stages(run)
    most = min(layers, LARGEST_ADVICE)
    if chunks > 1:
        for each in nearest(chunks, range(1, most // count + 1)):
            yield {VIRTUAL: each, **equal}
    for each in nearest(count, range(1, most // chunks + 1)):
        yield {PP: each, **equal}
    if chunks > 1:
        for each in nearest(count, range(1, most + 1)):
            yield {PP: each, VIRTUAL: 1, **equal}
    if count * chunks <= LARGEST_ADVICE:
        yield {LAYERS: count * chunks, **equal}


def _other_splits(run: RunConfig) -> Iterator[Change]:
    chunks, layers, split = virtual_stages(run), spec_of(run.model).num_layers, run.parallel.pipeline_split
    count = run.parallel.pipeline * chunks
    if SPLIT_RANK.fullmatch(split) and run.model.decoder_layers:
        yield from ({SPLIT: f"rank:{each}"} for each in split_ranks(run.model, count)[:MOST_CUT])
    words = [word.strip() for word in split.split(",")]
    if all(word.isascii() and word.isdigit() and len(word) < 5 for word in words):
        counts = [int(word) for word in words]
        if sum(counts) == layers and len(counts) == run.parallel.pipeline:
            yield {VIRTUAL: 1}
        elif sum(counts) == layers and len(counts) % chunks == 0 and len(counts) != count:
            yield {PP: len(counts) // chunks}
        elif len(counts) == count:
            # The largest stage gives or takes what is too much or missing.
            place = counts.index(max(counts))
            counts[place] += layers - sum(counts)
            yield {SPLIT: ",".join(map(str, counts))}
    share = [layers // count + (stage < layers % count) for stage in range(min(count, 64))]
    yield {SPLIT: ",".join(map(str, share))}
    yield {SPLIT: "layers"}


def sequence(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that every Ulysses rank gets as many tokens as the others, and a query head."""
    model, grid = run.model, run.parallel
    heads, length = model.num_heads // grid.tensor, model.seq_length
    known = [each for each in divisors(length) if each <= heads]
    if grid.sequence > heads:
        yield Problem(
            f"SP={grid.sequence} ranks cannot share HEADS / TP = {model.num_heads} / {grid.tensor} = {heads} query "
            f"heads: each needs one",
            [*each_of(SP, nearest(grid.sequence, known)), *each_of(TP, nearest(grid.tensor, divisors(grid.tensor)))],
        )
    if length % grid.sequence:
        yield Problem(
            f"SEQ={length} tokens cannot be split over SP={grid.sequence} ranks",
            [*each_of(SP, nearest(grid.sequence, known)), *each_of(SEQ, multiples(length, grid.sequence))],
        )


def scatter_norms(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the tokens of a sequence rank can be split again over the tensor ranks."""
    grid, length = run.parallel, run.model.seq_length
    share = grid.tensor * grid.sequence
    if grid.scatter_norms and length % share:
        shares = divisors(length)
        yield Problem(
            f"SCATTER_NORMS=1 splits the SEQ / SP = {length} / {grid.sequence} tokens per rank over TP={grid.tensor} "
            f"ranks, and {length} is not a multiple of {share}",
            [
                *each_of(SEQ, multiples(length, share)[:1]),
                {"parallel.scatter_norms": False},
                *each_of(TP, nearest(grid.tensor, (each for each in shares if length % (each * grid.sequence) == 0))),
            ],
        )


def tp_overlap(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that split layers gather and scatter, where torch's fused products do it for them."""
    grid = run.parallel
    if grid.tp_overlap_with == "symmetric_memory" and (grid.tensor == 1 or not grid.scatter_norms):
        given = "TP=1" if grid.tensor == 1 else "SCATTER_NORMS=0"
        scatter: Change = {"parallel.scatter_norms": True} | ({TP: 2} if grid.tensor == 1 else {})
        yield Problem(
            f"TP_OVERLAP_WITH=symmetric_memory fuses the gathers and scatters of SCATTER_NORMS=1, and {given} has none",
            [{"parallel.tp_overlap_with": "collectives"}, scatter],
        )


def zero(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the ZeRO stage goes with DeepSpeed's pipeline."""
    stage, count = run.parallel.zero_stage, run.parallel.pipeline
    if stage > 1 and count > 1 and choose(run, world_size).kind == "deepspeed":
        shared = "gradients" if stage == 2 else "weights"
        yield Problem(
            f"ZERO_STAGE={stage} shares {shared} that the PP={count} stages of a pipeline keep between micro-batches",
            [{ZERO: 1}, {PP: 1}, {"engine.kind": "native"}],
            overridable=(ZERO,),
        )


def launch(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the launcher of ranks can start as many."""
    if run.launch.launch_with == "direct" and world_size > 1:
        text = f"LAUNCH_WITH=direct starts one rank, not {world_size}"
        yield Problem(text, [{"launch.launch_with": "auto"}])


RULES = (launch, tensor, stages, sequence, scatter_norms, tp_overlap, zero)
