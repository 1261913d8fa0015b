"""What a rank sends in one step: collectives of every axis, with their bytes. Arithmetic, no torch.

The layers' collectives are those of the table in ``megads.models.gpt.Block``.
"""

from __future__ import annotations

from dataclasses import dataclass

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.families.decoder import spec_of
from megads.families.spec import local_size
from megads.plan.activations import Stage, rank_tokens
from megads.plan.engines import joined, native_zero_stage, sections_of
from megads.plan.memory import parameters_of, stages

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
ALL_TO_ALL, REDUCE, BROADCAST, SEND = "all-to-all", "reduce", "broadcast", "send"


@dataclass(frozen=True)
class Message:
    """Collectives of one kind on one axis.

    Attributes:
        axis: ``tensor``, ``seq``, ``data`` (data x seq) or ``pipe``.
        kind: of the collective.
        ranks: of the group.
        count: a step.
        num_bytes: of one: the whole tensor that is reduced, gathered or exchanged.
        what: of the model or the engine.
    """

    axis: str
    kind: str
    ranks: int
    count: int
    num_bytes: int
    what: str

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a step, over a ring."""
        share = {ALL_REDUCE: 2 * (self.ranks - 1) / self.ranks, SEND: 1.0}
        return self.count * self.num_bytes * share.get(self.kind, (self.ranks - 1) / self.ranks)


def traffic(run: RunConfig, world_size: int, stage: Stage) -> list[Message]:
    """Return what a rank of ``stage`` sends in one step of a derived ``run``; norms and scalars are left out."""
    grid, steps = run.parallel, run.train.grad_acc_steps
    found = []
    if grid.tensor > 1:
        found += _tensor(run, stage, steps)
    if grid.sequence > 1:
        found += _sequence(run, stage, steps)
    if grid.pipeline > 1:
        ends = (stage.index == 0) + (stage.index == grid.pipeline - 1)
        sends = steps * (2 * len(stage.runs) - ends)
        found.append(Message("pipe", SEND, 2, sends, _activation(run, is_cut=True), "activations and their gradients"))
        table = local_size(spec_of(run.model).copied, grid.tensor) * (stage.has_embedding or stage.has_head)
        if table and not spec_of(run.model).is_adapted:
            found.append(Message("pipe", REDUCE, 2, 1, table * 4, "gradient of the tied embedding"))
            found.append(Message("pipe", BROADCAST, 2, 1, table * _size(run), "tied embedding"))
    ranks = data_degree(run, world_size) * grid.sequence
    if ranks == 1:
        return found
    by = _native_data if choose(run, world_size).kind == "native" else _data
    return found + by(run, stage, ranks, steps)


def all_traffic(run: RunConfig, world_size: int) -> list[list[Message]]:
    """Return :func:`traffic` of every pipeline stage."""
    return [traffic(run, world_size, stage) for stage in stages(run)]


def _size(run: RunConfig) -> int:
    return 4 if run.train.dtype == "fp32" else 2


def _activation(run: RunConfig, *, is_cut: bool = False) -> int:
    """Return the bytes of ``[B, S/SP, H]``; cut along the sequence where the norms are."""
    cut = run.parallel.tensor if is_cut and run.parallel.scatter_norms else 1
    return rank_tokens(run) * run.model.hidden_size * _size(run) // cut


def _tensor(run: RunConfig, stage: Stage, steps: int) -> list[Message]:
    """Return the tensor axis: two per layer and direction, and those of embedding, head and loss."""
    ranks, whole = run.parallel.tensor, _activation(run)
    again = 1 if run.recompute.granularity == "full" else 0
    layers, ends = stage.layers * steps, steps * (stage.has_embedding + stage.has_head)
    if run.parallel.scatter_norms:
        # Two of a layer's gathers bring back in the backward pass an input that was not kept.
        heads = steps * stage.has_head
        return [
            Message("tensor", ALL_GATHER, ranks, (6 + 2 * again) * layers + ends + heads, whole, "activations"),
            Message("tensor", REDUCE_SCATTER, ranks, (4 + 2 * again) * layers + ends, whole, "activations"),
        ]
    return [Message("tensor", ALL_REDUCE, ranks, (4 + 2 * again) * layers + ends, whole, "activations")]


def _sequence(run: RunConfig, stage: Stage, steps: int) -> list[Message]:
    """Return the sequence axis: queries, keys and values there, and the result back, in both directions."""
    model, ranks = run.model, run.parallel.sequence
    again = 1 if run.recompute.granularity == "full" else 0
    per_head = rank_tokens(run) * model.head_dim * _size(run) // run.parallel.tensor
    count, heads = (2 + again) * stage.layers * steps, model.num_heads
    keys = max(model.num_kv_heads, min(heads, ranks * run.parallel.tensor))
    return [
        Message("seq", ALL_TO_ALL, ranks, count, per_head * (heads + 2 * keys), "queries, keys and values"),
        Message("seq", ALL_TO_ALL, ranks, count, per_head * heads, "results of attention"),
    ]


def _data(run: RunConfig, stage: Stage, ranks: int, steps: int) -> list[Message]:
    """Return gradients and weights over data x seq, by the ZeRO stage (arXiv 1910.02054)."""
    count, size, zero = _own_parameters(run, stage), _size(run), effective_zero_stage(run)
    wide = 4 if "fp32" in (run.deepspeed.communication_data_type, run.train.dtype) else 2
    if zero == 0:
        return [Message("data", ALL_REDUCE, ranks, 1, count * wide, "gradients")]
    if zero == 1:
        return [
            Message("data", REDUCE_SCATTER, ranks, 1, count * wide, "gradients"),
            Message("data", ALL_GATHER, ranks, 1, count * size, "weights"),
        ]
    if zero == 2:
        # Every rank gets the sum of its own part.
        return [
            Message("data", REDUCE, ranks, steps * ranks, count * wide // ranks, "gradients"),
            Message("data", ALL_GATHER, ranks, 1, count * size, "weights"),
        ]
    persistent = _persistent(run, stage)
    # A weight is gathered in the forward pass, and again in the backward pass unless it is reused within the distance.
    rest = count - persistent
    again = max(0, rest - run.deepspeed.max_reuse_distance // 2)
    return [
        Message("data", REDUCE_SCATTER, ranks, steps, count * wide, "gradients"),
        Message("data", ALL_GATHER, ranks, 1, persistent * size, "small weights"),
        Message("data", ALL_GATHER, ranks, steps, (rest + again) * size, "weights"),
    ]


def _native_data(run: RunConfig, stage: Stage, ranks: int, steps: int) -> list[Message]:
    """Return what the native engine sends over data x seq: a message is a unit's, of its mean size."""
    is_adapted = spec_of(run.model).is_adapted
    sections, size = sections_of(run, stage, trained=is_adapted), _size(run)
    wire = 4 if run.deepspeed.communication_data_type == "fp32" else 2
    zero, own = native_zero_stage(run, ranks), sum(sections)
    units = sections if zero == 3 else joined(sections, run.deepspeed.reduce_bucket_size)
    number, mean = len(units), own / len(units)
    if zero == 0:
        return [Message("data", ALL_REDUCE, ranks, number, round(mean * wire), "gradients")]
    times = steps if zero > 1 else 1
    found = [Message("data", REDUCE_SCATTER, ranks, times * number, round(mean * wire), "gradients")]
    if zero < 3:
        return [*found, Message("data", ALL_GATHER, ranks, number, round(mean * size), "weights")]
    # A layer is gathered in the forward and in the backward pass; the last one stays between the two, the first one
    # from one micro-batch to the next.
    if is_adapted:
        sections = sections_of(run, stage)
        own = sum(sections)
    layers = sections[stage.has_embedding : len(sections) - stage.has_head]
    rest = own - sum(layers)
    gathers = steps * (2 * len(layers) - 1) - (steps - 1) if layers else 0
    elements = steps * (2 * sum(layers) - layers[-1]) - (steps - 1) * layers[0] if layers else 0
    return [
        *found,
        Message("data", ALL_GATHER, ranks, stage.has_embedding + stage.has_head, _share(rest * size, stage), "tables"),
        Message("data", ALL_GATHER, ranks, gathers, round(elements / max(1, gathers) * size), "weights"),
    ]


def _share(num_bytes: int, stage: Stage) -> int:
    return num_bytes // max(1, stage.has_embedding + stage.has_head)


def _own_parameters(run: RunConfig, stage: Stage) -> int:
    """Return the parameters of a rank of ``stage`` without its copy of another stage's embedding."""
    is_copied = stage.has_head and not stage.has_embedding
    return parameters_of(run, stage) - is_copied * local_size(spec_of(run.model).copied, run.parallel.tensor)


def _persistent(run: RunConfig, stage: Stage) -> int:
    """Return the elements of a stage's parameters that ZeRO 3 gathers once a step, because they are small."""
    spec, tensor, limit = spec_of(run.model), run.parallel.tensor, run.deepspeed.param_persistence_threshold
    steps = [spec.embedding] * stage.has_embedding + [spec.output] * stage.has_head
    steps += [spec.layer_of(index) for index in stage.numbers]
    sizes = (local_size((each,), tensor) for step in steps for each in step)
    return sum(size for size in sizes if size <= limit)
