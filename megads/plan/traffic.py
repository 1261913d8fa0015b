"""What a rank sends in one step: collectives of every axis, with their bytes. Arithmetic, no torch.

The layers' collectives are those of the table in ``megads.models.gpt.Block``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.families.decoder import spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.spec import Parameter, local_size
from megads.plan.layer_traffic import sequence_counts, tensor_counts
from megads.plan.memory import parameters_of, stages
from megads.plan.parts.activations import Stage, rank_tokens
from megads.plan.parts.engines import joined, native_zero_stage
from megads.plan.parts.stacks import head_tokens

ALIGNED = 64
"""Elements at whose multiples the native engine's parameters and parts begin (``megads.engine.native.units``)."""

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
    """Return what a rank of ``stage`` sends in a step of a derived ``run``, without losses, scalars and norms."""
    grid, steps = run.parallel, run.train.grad_acc_steps
    found = []
    if grid.tensor > 1:
        found += _tensor(run, stage, steps)
    if grid.sequence > 1:
        found += _sequence(run, stage, steps)
    if grid.pipeline > 1:
        ends = (stage.index == 0) + (stage.index == grid.pipeline - 1)
        sends = steps * (2 * len(stage.runs) - ends)
        found.append(Message("pipe", SEND, 2, sends, _boundary(run), "activations and their gradients"))
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


def _boundary(run: RunConfig) -> int:
    """Return the bytes of ``[B, S/SP, H]``, of both texts of T5; cut along the sequence where the norms are."""
    cut = run.parallel.tensor if run.parallel.scatter_norms else 1
    tokens = rank_tokens(run) + (head_tokens(run) if has_decoder(run.model) else 0)
    return tokens * run.model.hidden_size * _size(run) // cut


def _tensor(run: RunConfig, stage: Stage, steps: int) -> list[Message]:
    """Return the tensor axis: two per layer and direction, and those of embedding, head and loss."""
    counts, size = tensor_counts(run, stage), _size(run)
    return [
        Message("tensor", kind, run.parallel.tensor, steps * count, numbers * size, "activations")
        for (kind, numbers), count in sorted(counts.items(), key=lambda item: -item[0][1] * item[1])
        if count
    ]


def loss_traffic(run: RunConfig, stage: Stage) -> list[Message]:
    """Return what a loss over split logits sends, which is little: float32 numbers of every token."""
    ranks, tokens = run.parallel.tensor, head_tokens(run)
    if ranks == 1 or not stage.has_head or run.recompute.loss_chunk or run.model.num_classes:
        return []
    named = ((tokens, "maxima of logits"), (2 * tokens, "sums of the loss"))
    return [Message("tensor", ALL_REDUCE, ranks, run.train.grad_acc_steps, 4 * n, what) for n, what in named]


def _sequence(run: RunConfig, stage: Stage, steps: int) -> list[Message]:
    """Return the sequence axis: queries, keys and values there, and the result back, in both directions."""
    counts, size = sequence_counts(run, stage), _size(run)
    return [
        Message("seq", ALL_TO_ALL, run.parallel.sequence, steps * count, numbers * size, what)
        for (numbers, what), count in counts.items()
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
    """Return what the native engine sends over data x seq: a message is a unit, filled up to equal, aligned parts."""
    zero, size = native_zero_stage(run, ranks), _size(run)
    wire = 4 if run.deepspeed.communication_data_type == "fp32" else 2
    found: Counter[tuple[str, int, str]] = Counter()
    for sections in _chunks(run, stage, is_trained=True):
        sizes = [sum(each) for each in sections]
        members = [[i] for i in range(len(sizes))] if zero == 3 else joined_members(sizes, run)
        for unit in members:
            numel = filled([parameter for i in unit for parameter in sections[i]], ranks)
            times = 1 if zero < 2 else steps
            found[ALL_REDUCE if zero == 0 else REDUCE_SCATTER, numel * wire, "gradients"] += times
            if zero in (1, 2):
                found[ALL_GATHER, numel * size, "weights"] += 1
    if zero == 3:
        found.update(_gathers(run, stage, ranks, steps))
    return [Message("data", kind, ranks, count, num_bytes, what) for (kind, num_bytes, what), count in found.items()]


def _gathers(run: RunConfig, stage: Stage, ranks: int, steps: int) -> Counter[tuple[str, int, str]]:
    """Return the gathers of ZeRO 3.

    A layer is gathered in the forward and in the backward pass; the last one stays behind a forward pass, the first
    one behind a backward pass. What is no layer is gathered once a step.
    """
    found: Counter[tuple[str, int, str]] = Counter()
    size, is_adapted = _size(run), spec_of(run.model).is_adapted
    chunks = [(is_trained, _chunks(run, stage, is_trained=is_trained)) for is_trained in (True, False)]
    for is_trained, of_chunks in chunks:
        if not is_trained and not is_adapted:
            continue
        for number, sections in enumerate(of_chunks):
            layers = len(stage.runs[number])
            first = stage.has_embedding and number == 0 and (not is_adapted or not is_trained)
            for place, section in enumerate(sections):
                index = place - first
                is_layer = 0 <= index < layers
                count = 1
                if is_layer:
                    count = 2 * steps - (steps - 1) * (index == 0) - steps * (index == layers - 1)
                num_bytes = filled(section, ranks) * size
                found[ALL_GATHER, num_bytes, "weights" if is_layer else "tables"] += count
    return +found


def _chunks(run: RunConfig, stage: Stage, *, is_trained: bool) -> list[list[list[int]]]:
    """Return the sizes of a rank's parameters, of every section of every chunk; copies are another stage's.

    A section is the embedding, a layer, or the output. With ``is_trained`` only what is not frozen.
    """
    spec, tensor = spec_of(run.model), run.parallel.tensor

    def sizes(parameters: Iterable[Parameter]) -> list[int]:
        return [local_size((each,), tensor) for each in parameters if spec.is_trained(each) is is_trained]

    found = []
    for number, numbers in enumerate(stage.runs):
        sections = [spec.embedding] if stage.has_embedding and number == 0 else []
        sections += [spec.layer_of(each) for each in numbers]
        sections += [spec.output] if stage.has_head and number == len(stage.runs) - 1 else []
        found.append([section for section in map(sizes, sections) if section])
    return found


def filled(parameters: Iterable[int], ranks: int) -> int:
    """Return the elements of a unit: parameters begin at multiples of 64, and each of ``ranks`` has one more so."""
    aligned = sum(-(-each // ALIGNED) * ALIGNED for each in parameters)
    return -(-aligned // (ranks * ALIGNED)) * ranks * ALIGNED


def joined_members(sizes: list[int], run: RunConfig) -> list[list[int]]:
    """Return which neighbours of ``sizes`` are one unit, see :func:`megads.plan.parts.engines.joined`."""
    found, left = [], list(range(len(sizes)))
    for total in joined(sizes, run.deepspeed.reduce_bucket_size):
        members: list[int] = []
        while left and sum(sizes[i] for i in members) < total:
            members.append(left.pop(0))
        found.append(members)
    return found


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
