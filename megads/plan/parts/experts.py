"""Memory of models that megads does not train: experts, latent attention, Mamba layers, tokens predicted further on.

They are described next to a run, whose model gives what they share with a decoder: width, heads, vocabulary. Parameters
are counted exactly; what is kept for the backward pass assumes that tokens go to experts evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.families.decoder import is_gated, padded_vocab_size, spec_of
from megads.families.spec import local_size
from megads.plan.conventions import Conventions
from megads.plan.memory import Memory, logits_bytes
from megads.plan.parts.activations import Stage, layer_bytes, most_kept, rank_tokens
from megads.plan.parts.stacks import buffer_bytes

STATE, GROUPS, MAMBA_HEAD, CONVOLUTION = 128, 8, 64, 4
"""Mamba 2 (arXiv 2405.21060) with Megatron-LM's sizes: of a state, groups of B and C, of a head, of a kernel."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (arXiv 2405.04434): ranks and the parts of a head. ``queries`` 0: not compressed."""

    queries: int
    keys: int
    head: int
    turned: int
    values: int


@dataclass(frozen=True)
class Extended:
    """What a model has besides a decoder's layers.

    Attributes:
        layers: kind of every layer: ``t`` attention and MLP, ``e`` attention and experts; alone: ``*`` attention, ``-``
            MLP, ``E`` experts, ``M`` Mamba.
        experts: of a layer; ``chosen`` of a token.
        inner: width inside an expert; ``shared``: of the one that all tokens go to.
        expert_parallel: ranks that split the experts, which is part of data x sequence x tensor.
        expert_tensor: ranks that split one expert.
        outer: width of what experts read, where it is projected before (LatentMoE); 0: the model's.
        further: modules that predict tokens further on (MTP), on the last stage.
        mamba_heads: 0: twice the width.
        is_frozen: whether only ``more`` is trained.
        more, more_frozen: parameters of other modules that every rank holds, such as a tower of vision.
    """

    layers: str
    experts: int = 0
    chosen: int = 1
    inner: int = 0
    shared: int = 0
    expert_parallel: int = 1
    expert_tensor: int = 1
    latent: Latent | None = None
    outer: int = 0
    further: int = 0
    mamba_heads: int = 0
    mamba_head: int = MAMBA_HEAD
    is_frozen: bool = False
    more: int = 0
    more_frozen: int = 0


@dataclass(frozen=True)
class Counts:
    """Parameters of a rank: those that all data ranks have, and those of experts."""

    dense: int
    experts: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.dense + other.dense, self.experts + other.experts)


def stage_counts(run: RunConfig, model: Extended, stage: Stage) -> Counts:
    """Return the parameters of a rank of ``stage``."""
    tensor, spec = run.parallel.tensor, spec_of(run.model)
    found = sum((layer_counts(run, model, model.layers[number]) for number in stage.numbers), Counts(0, 0))
    dense = local_size(spec.embedding, tensor) * stage.has_embedding
    if stage.has_head:
        dense += local_size(spec.output, tensor)
        dense += local_size(spec.copied, tensor) * (not stage.has_embedding)
        dense += _table(run) * (model.further > 0 and not stage.has_embedding)
        width = run.model.hidden_size
        for _ in range(model.further):
            found += layer_counts(run, model, model.layers[-1])
            dense += 2 * width * width // tensor + 3 * width
    return found + Counts(dense, 0)


def _table(run: RunConfig) -> int:
    return padded_vocab_size(run.model) * run.model.hidden_size // run.parallel.tensor


def layer_counts(run: RunConfig, model: Extended, kind: str) -> Counts:
    """Return the parameters of a rank in a layer of ``kind``."""
    layer, tensor, width = spec_of(run.model).layer, run.parallel.tensor, run.model.hidden_size
    dense = experts = 0
    if kind in "te*":
        attention = [each for each in layer if each.name.startswith(("attention.", "input_norm"))]
        dense += _latent(run, model.latent) + width if model.latent else local_size(attention, tensor)
    if kind in "t-":
        dense += local_size((each for each in layer if each.name.startswith(("mlp.", "post_norm"))), tensor)
    if kind in "eE":
        matrices = 3 if is_gated(run.model.activation) else 2
        outer = model.outer or width
        own = model.experts // model.expert_parallel
        experts += own * matrices * outer * model.inner // model.expert_tensor
        dense += matrices * width * model.shared // tensor + model.experts * width + width
        dense += 2 * width * model.outer
        dense += width if run.model.normalization == "layernorm" else 0
    if kind == "M":
        heads = model.mamba_heads or 2 * width // model.mamba_head
        inner, states = heads * model.mamba_head, 2 * GROUPS * STATE
        dense += (width * (2 * inner + states + heads) + width * inner) // tensor + width
        dense += ((inner + states) * (CONVOLUTION + 1) + 3 * heads + inner) // tensor
    return Counts(dense, experts)


def _latent(run: RunConfig, each: Latent) -> int:
    heads, width, tensor = run.model.num_heads, run.model.hidden_size, run.parallel.tensor
    queries = heads * (each.head + each.turned)
    count = (each.queries or width) * queries // tensor + (each.queries and width * each.queries + each.queries)
    count += width * (each.keys + each.turned) + each.keys
    return count + (each.keys * heads * (each.head + each.values) + heads * each.values * width) // tensor


def stage_memory(run: RunConfig, world_size: int, model: Extended, stage: Stage, by: Conventions) -> Memory:
    """Return what a rank of ``stage`` needs, by a system whose bytes of a parameter are known."""
    counts, each = stage_counts(run, model, stage), by.parameters[run.train.dtype]
    frozen = model.more_frozen + (counts.dense + counts.experts if model.is_frozen else 0)
    counts = Counts((0 if model.is_frozen else counts.dense) + model.more, 0 if model.is_frozen else counts.experts)
    zero, grid = effective_zero_stage(run), run.parallel
    sharers = max(1, data_degree(run, world_size) * grid.sequence // by.copies)
    own = max(1, world_size // (grid.pipeline * model.expert_parallel * model.expert_tensor) // by.copies)

    def share(size: float, stage_of: int) -> int:
        if zero < stage_of:
            return round(size * (counts.dense + counts.experts))
        return round(size * (counts.dense / sharers + counts.experts / own))

    owned = round(each.optimizer * _table(run)) if by.owns_parameters and zero else 0
    gathered = 0
    if zero == 3:
        largest = max(layer_counts(run, model, kind).dense for kind in set(model.layers))
        gathered = by.gathered_bytes * (2 * largest + 2 * _table(run))
    logits = logits_bytes(run, by) * (1 + model.further) if stage.has_head else 0
    return Memory(
        weights=share(each.weight, 3) + round(each.weight * frozen),
        gradients=share(each.gradient, 2),
        optimizer=max(share(each.optimizer, 1), owned),
        buffers=gathered + buffer_bytes(run, stage, by),
        activations=_kept(run, model, stage, by),
        logits=logits,
        copy=0,
        program=by.library_bytes or 0,
    )


def _kept(run: RunConfig, model: Extended, stage: Stage, by: Conventions) -> int:
    """Return what a stage keeps of all micro-batches in flight."""
    sizes = {kind: layer_kept(run, model, kind, by) for kind in set(model.layers)}

    def of(numbers: Sequence[int]) -> int:
        if run.recompute.granularity == "full":
            scattered = run.parallel.tensor if run.parallel.scatter_norms else 1
            return len(numbers) * 2 * rank_tokens(run) * run.model.hidden_size // scattered
        return sum(sizes[model.layers[number]] for number in numbers)

    further = model.further * sizes[model.layers[-1]] if stage.has_head else 0
    return most_kept(run, stage, of, of) + further


def layer_kept(run: RunConfig, model: Extended, kind: str, by: Conventions) -> int:
    """Return the bytes that a layer of ``kind`` keeps for its backward pass."""
    tensor, width, tokens = run.parallel.tensor, run.model.hidden_size, rank_tokens(run)
    size = 4 if run.train.dtype == "fp32" else 2
    scattered = tensor if run.parallel.scatter_norms else 1
    per_inner = by.gated if is_gated(run.model.activation) else 2
    stream = size * tokens * width // scattered
    mlp = size * tokens * per_inner * run.model.ffn_hidden_size // tensor
    norm = 2 * stream + (tokens * width * by.mask_bytes // scattered if run.model.hidden_dropout else 0)
    kept = 0
    if kind in "te*":
        plain = run if model.latent is None else _as_latent(run, model.latent)
        kept += layer_bytes(plain, by) - mlp - norm
        if model.latent:
            kept += size * tokens * (model.latent.queries + model.latent.keys + model.latent.turned) // scattered
    if kind in "t-":
        kept += mlp + norm
    if kind in "eE":
        pairs, outer = tokens * model.chosen, model.outer or width
        kept += norm + size * pairs * (2 * outer + per_inner * model.inner) // tensor
        kept += size * tokens * per_inner * model.shared // tensor + 8 * tokens * model.experts // scattered
    if kind == "M":
        heads = model.mamba_heads or 2 * width // model.mamba_head
        inner, states = heads * model.mamba_head, 2 * GROUPS * STATE
        # The input's projection, the convolution's result, the scan's result, its gated norm; states of chunks.
        kept += norm + size * tokens * (2 * inner + states + heads + inner + states + 2 * inner) // tensor
    return kept


def _as_latent(run: RunConfig, latent: Latent) -> RunConfig:
    """Return a run whose heads are as wide as those of latent attention, with all keys and values."""
    model = run.model
    wide = (2 * (latent.head + latent.turned) + 2 * latent.values) // 4
    changed = model.model_copy(update={"head_dim": wide, "num_kv_heads": model.num_heads})
    return run.model_copy(update={"model": changed})


def stages_of(stages: Sequence[Sequence[int]]) -> list[Stage]:
    """Return stages with chunks of so many layers each; chunk ``c`` of stage ``s`` is the model's ``c PP + s``.

    Args:
        stages: layers of every chunk of every stage.
    """
    pipeline = len(stages)
    starts, first = {}, 0
    for chunk in range(len(stages[0])):
        for index in range(pipeline):
            starts[index, chunk] = range(first, first + stages[index][chunk])
            first += stages[index][chunk]
    found = []
    for index in range(pipeline):
        runs = tuple(starts[index, chunk] for chunk in range(len(stages[0])))
        plain = Stage(index, sum(map(len, runs)), has_embedding=index == 0, has_head=index == pipeline - 1)
        found.append(replace(plain, first=runs[0].start, chunks=runs if len(runs) > 1 else ()))
    return found
