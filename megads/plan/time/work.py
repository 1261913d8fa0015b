"""What a pipeline stage does in a step: seconds of every resource at its full rate, before any efficiency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import choose
from megads.config.kernel_form import form_of
from megads.config.schema import ModelConfig, RunConfig
from megads.families.decoder import padded_vocab_size, spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.spec import Parameter
from megads.families.table import FAMILIES
from megads.plan.memory import stages, trained_of
from megads.plan.parts import retro
from megads.plan.parts.activations import Stage, rank_tokens
from megads.plan.parts.encoder_decoder import layer_products, logit_products
from megads.plan.places.place import Level, Place
from megads.plan.time.systems import BY_ENGINE, COMPILED, EAGER, Attention, Bytes, Passes, System
from megads.plan.traffic import ALL_TO_ALL, Message, traffic

UNALIGNED = 3.0
"""Times that products of half precision take on a V100 where a side is no multiple of 8: its matrix units are idle."""

FP8_BYTES = 2 / 3
"""What products in FP8 move by what those in bf16 do: of operands and result two have a byte, in place of two bytes."""

CAST_BYTES = 4
"""To cast a product's input or the gradient of its result to FP8: read in bf16, written as it is and transposed."""

END_KERNELS = 12
"""Of embedding, head and loss."""

SCORE_BYTES = {"unfused": (11, 17), "eager": (46, 54)}
"""Of an attention score that stands in memory, forward and backward, with softmax and dropout: in one kernel each, or
operator by operator with a softmax in float32: products, type, scale, mask, softmax, type, dropout then each read and
write scores by themselves."""


@dataclass(frozen=True)
class Sent:
    """Communication of an axis: seconds at the links' full rate, messages, and what a message waits at least."""

    seconds: float = 0.0
    messages: float = 0.0
    latency_s: float = 0.0
    what: str = ""
    ranks: int = 1


@dataclass(frozen=True)
class Work:
    """A stage's work: of one micro-batch, forward and backward, and once a step. Seconds at full rates.

    Attributes:
        products: FLOPs of products in the run's precision, by the peak.
        products_8: of those in FP8, by its peak.
        head: of ``products``, those of the logits.
        operands: bytes of all operands of products, by the bandwidth of memory.
        casts: bytes of kernels that cast operands to FP8.
        core: FLOPs of attention, by the peak.
        scores: bytes of scores that stand in memory.
        passes: bytes of all other kernels, by what they are.
        passes_again: bytes of those that are computed again.
        again: of products, core, scores and operands the shares that are computed again.
        kernels: how many.
        sums: bytes per parameter of a micro-batch.
        updates: bytes per parameter of a step, by what they are.
        tensor, seq, pipe: messages of a micro-batch.
        data: messages of a step.
        data_parts: pieces of them that hide; data_times: passes of a step that they hide behind.
    """

    stage: Stage
    products: float
    products_8: float
    head: float
    operands: float
    casts: float
    core: float
    scores: float
    passes: dict[str, float]
    passes_again: float
    again: tuple[float, ...]
    kernels: float
    sums: float
    updates: dict[str, float]
    tensor: Sent
    seq: Sent
    pipe: Sent
    data: Sent
    data_parts: int
    data_times: int
    host_s: float


def is_compiled(run: RunConfig, world_size: int) -> bool:
    """Return whether layers and loss of ``run`` are compiled on an accelerator."""
    return form_of(run, world_size, "cuda").kind == "compiled"


def passes_of(run: RunConfig, world_size: int, system: System) -> Passes:
    """Return what the kernels of ``system`` read and write."""
    return system.passes or (COMPILED if is_compiled(run, world_size) else EAGER)


def attention_of(run: RunConfig, world_size: int, system: System) -> Attention:
    """Return the attention kernel."""
    found = system.tensor_attention if run.parallel.tensor > 1 else "auto"
    found = system.attention if found == "auto" else found
    if found == "auto":
        found = "fast" if is_compiled(run, world_size) else "flash"
    return found


def works(run: RunConfig, world_size: int, place: Place, system: System) -> list[tuple[int, Work]]:
    """Return the work of each kind of pipeline stage of a derived ``run``, and how many stages are of that kind."""
    kinds: dict[tuple[int, bool, bool], tuple[int, Stage]] = {}
    for stage in stages(run):
        key = (0 if _differs(run) else stage.layers, stage.has_embedding, stage.has_head)
        key = (stage.index, *key[1:]) if _differs(run) else key
        kinds[key] = (kinds.get(key, (0, stage))[0] + 1, kinds.get(key, (0, stage))[1])
    return [(count, _work(run, world_size, place, system, stage)) for count, stage in kinds.values()]


def _differs(run: RunConfig) -> bool:
    """Return whether layers differ."""
    return has_decoder(run.model) or FAMILIES[run.model.family].samples == "retro"


def _work(run: RunConfig, world_size: int, place: Place, system: System, stage: Stage) -> Work:
    grid, tokens = run.parallel, rank_tokens(run)
    passes = passes_of(run, world_size, system)
    engine = system.engine or BY_ENGINE[choose(run, world_size).kind]
    peak, rate = place.peak_tflops(run.train.dtype) * 1e12, place.device.memory_gb_s * 1e9
    clumsy = UNALIGNED if "V100" in place.device.device_name and run.train.dtype != "fp32" else 1.0
    layer_flops, layer_bytes, states, core, score = _of_layers(run, stage, clumsy)
    head_flops = 0.0
    if stage.has_head:
        logits = logit_products(run.model) / run.model.seq_length if has_decoder(run.model) else _logits(run.model)
        head_flops = 6.0 * tokens * logits / grid.tensor
    kernel = attention_of(run, world_size, system)
    moved = SCORE_BYTES.get(kernel, (0, 0))
    unfused = kernel in SCORE_BYTES
    core_flops = core * (6.0 if unfused else 7.0) * (1.0 if unfused else _half(run))
    scores = float(score * sum(moved))
    again = _again(run, stage, system, moved)
    kernels = passes.kernels * 3 * stage.layers * (1 + again[0] / 3) + END_KERNELS
    sent = traffic(run, world_size, stage)
    messages = {axis: [each for each in sent if each.axis == axis] for axis in AXES}
    steps = run.train.grad_acc_steps
    count = trained_of(run, stage)
    sharers = grid.data * grid.sequence if grid.zero_stage else 1
    half = run.train.dtype != "fp32"
    summed = (engine.first_sum + (steps - 1) * engine.sum) / steps if half or steps > 1 else 0.0
    zero = effective_zero_stage(run)
    return Work(
        stage=stage,
        products=(head_flops + (0.0 if system.fp8 else layer_flops)) / peak,
        products_8=layer_flops / (place.peak_tflops("fp8") * 1e12) if system.fp8 else 0.0,
        head=head_flops / peak,
        operands=layer_bytes * (FP8_BYTES if system.fp8 else 1.0) / rate,
        casts=CAST_BYTES * states / rate if system.fp8 else 0.0,
        core=core_flops / peak,
        scores=scores / rate,
        passes={name: each / rate for name, each in _passes(run, stage, passes)},
        passes_again=sum(each for name, each in _passes(run, stage, passes) if not name.endswith(LOSS))
        * again[4]
        / rate,
        again=again[:4],
        kernels=kernels,
        sums=count * summed / rate,
        updates={name: each / rate for name, each in _updates(engine, count, sharers, half)},
        tensor=_sent(place, messages["tensor"], grid.tensor, steps, 1),
        seq=_sequence(run, place, system, stage, messages["seq"]),
        pipe=_pipe(run, place, system, messages["pipe"]),
        data=_sent(place, messages["data"], world_size // grid.pipeline, 1, grid.tensor),
        data_parts=max((each.count for each in messages["data"]), default=1),
        data_times=steps if zero > 1 else 1,
        host_s=engine.host_s,
    )


LOSS = "loss", "loss in float32"
FORWARD = 0.4
"""Share of the bytes of kernels that are of the forward pass."""

AXES = "tensor", "seq", "pipe", "data"


def _half(run: RunConfig) -> float:
    return 0.5 if FAMILIES[run.model.family].samples in ("causal", "retro") else 1.0


def _logits(model: ModelConfig) -> int:
    from megads.plan.flops import products

    return products(model, model.seq_length).logits


def _of_layers(run: RunConfig, stage: Stage, clumsy: float) -> tuple[float, ...]:
    """Return a micro-batch's FLOPs of products, bytes of operands, numbers to cast, core products and scores."""
    model, grid, tokens = run.model, run.parallel, rank_tokens(run)
    size, rows = 4 if run.train.dtype == "fp32" else 2, run.train.micro_batch
    if _differs(run):
        each = layer_products(model) if has_decoder(model) else retro.layer_products(model, causal=False)
        mine = [each[number] for number in stage.numbers]
        rest, core = (
            rows * sum(values) / grid.tensor for values in zip(*((x.rest, x.core) for x in mine), strict=True)
        )
        heads = model.num_heads * rows / grid.tensor
        return 6.0 * rest, 0.0, 0.0, core, heads * model.seq_length**2 * stage.layers
    flops, moved, states = _products(spec_of(model).matrices(), tokens, grid.tensor, clumsy)
    core = 2.0 * tokens * model.num_heads * model.head_dim * model.seq_length / grid.tensor
    core *= clumsy if model.head_dim % 8 else 1.0
    scores = float(tokens) * model.seq_length * model.num_heads / grid.tensor
    return tuple(stage.layers * each for each in (flops, size * moved, states, core, scores))


def _products(matrices: list[Parameter], tokens: int, tensor: int, clumsy: float) -> tuple[float, float, float]:
    """Return a layer's FLOPs and moved elements of products, and elements of activations and gradients among them."""
    flops = moved = states = 0.0
    for matrix in matrices:
        out, inner = matrix.shape
        out, inner = (out // tensor, inner) if matrix.dim == 0 else (out, inner // tensor)
        flops += 6.0 * tokens * out * inner * (clumsy if out % 8 or inner % 8 else 1.0)
        moved += 3.0 * (tokens * inner + out * inner + tokens * out)
        states += tokens * (inner + out)
    return flops, moved, states


def _again(run: RunConfig, stage: Stage, system: System, moved: tuple[int, int]) -> tuple[float, ...]:
    """Return the shares of products (in forward passes), core, scores, operands and other kernels computed again."""
    given = run.recompute
    if given.granularity == "none":
        return 0.0, 0.0, 0.0, 0.0, 0.0
    part = 1.0
    if given.granularity == "full" and given.method == "block" and stage.layers:
        part = min(1.0, given.num_layers / stage.layers)
    unfused = any(moved)
    scores = part * moved[0] / sum(moved) if unfused else 0.0
    core = part / (3.0 if unfused else 3.5)
    if given.granularity == "full":
        return part, core, scores, part / 3, part * FORWARD
    if system.computes_again:
        return system.computes_again, 0.0, 0.0, system.computes_again / 3, FORWARD
    return 0.0, core, scores, 0.0, 0.0


def _passes(run: RunConfig, stage: Stage, by: Passes) -> Iterator[tuple[str, float]]:
    """Yield bytes of kernels that read and write activations, of a micro-batch."""
    model, grid, size = run.model, run.parallel, 4 if run.train.dtype == "fp32" else 2
    spec, tensor = spec_of(model), run.parallel.tensor
    tokens = rank_tokens(run)
    each = tokens * size * stage.layers
    whole = tensor if grid.scatter_norms else 1
    widths = sum(weight.size for weight, _ in spec.norms())
    inner, is_gated = spec.matrices("mlp")[0].shape[0], len(spec.matrices("mlp")[0].parts) > 1
    yield "activation of the MLP", each * (by.gate * inner / 2 if is_gated else by.plain * inner) / tensor
    yield "norms", each * by.norm * widths / whole
    dropout = 1 + 0.5 * bool(model.hidden_dropout)
    yield "residual sums", each * 2 * by.residual * dropout * model.hidden_size / whole
    if model.position_embedding == "rope":
        turned = (model.num_heads + model.num_kv_heads) * model.head_dim
        joined = turned + model.num_kv_heads * model.head_dim
        yield "rotary positions", each * (by.turned * turned + by.joined * joined) / tensor
    if stage.has_head:
        name = "compiled loss" if by is COMPILED else "loss in float32"
        yield name, tokens * padded_vocab_size(model) / tensor * by.logit_bytes


def _updates(engine: Bytes, count: int, sharers: int, half: bool) -> Iterator[tuple[str, float]]:
    yield "zero, norm and clip of gradients", count * engine.clip
    yield "optimizer", count / sharers * engine.adam
    if half:
        yield "master weights to bf16", count / sharers * engine.cast


def _bandwidth(place: Place, reach: int, stride: int) -> tuple[Level, float]:
    """Return the level that joins ``reach`` ranks, and the bytes per second of a group with every ``stride``-th.

    A group with several ranks in a host sends through the adapters of all of them.
    """
    level = place.level(reach)
    if reach <= place.per_host or place.per_host <= stride:
        return level, level.gb_s * 1e9
    inside = place.level(place.per_host).gb_s
    return level, min(max(inside, level.gb_s), level.gb_s * (place.per_host // stride)) * 1e9


def _sent(place: Place, messages: list[Message], reach: int, steps: int, stride: int) -> Sent:
    """Return the communication of neighbouring ranks, per micro-batch of ``steps``."""
    if not messages:
        return Sent()
    level, rate = _bandwidth(place, reach, stride)
    count = sum(each.count for each in messages) / steps
    ranks = messages[0].ranks
    waits = level.latency_s * (ranks - 1).bit_length()
    return Sent(sum(each.sent_bytes for each in messages) / steps / rate, count, waits, level.what, ranks)


def _sequence(run: RunConfig, place: Place, system: System, stage: Stage, messages: list[Message]) -> Sent:
    """Return what the sequence axis sends: heads, or keys and values that go round."""
    grid, model, steps = run.parallel, run.model, run.train.grad_acc_steps
    if grid.sequence == 1 or system.sequence == "ulysses":
        return _sent(place, messages, grid.tensor * grid.sequence, steps, grid.tensor)
    size = 4 if run.train.dtype == "fp32" else 2
    again = 1 if run.recompute.granularity == "full" else 0
    held = 2 * rank_tokens(run) * model.num_kv_heads * model.head_dim * size // max(1, grid.tensor)
    # Keys and values go round in the forward pass; they and their gradients in the backward pass.
    total = held * (grid.sequence - 1) * (3 + again)
    ring = Message("seq", ALL_TO_ALL, grid.sequence, stage.layers * steps, 0, "keys and values")
    found = _sent(place, [ring], grid.tensor * grid.sequence, steps, grid.tensor)
    _, rate = _bandwidth(place, grid.tensor * grid.sequence, grid.tensor)
    return Sent(
        stage.layers * total / rate, found.messages * (grid.sequence - 1), found.latency_s, found.what, found.ranks
    )


def _pipe(run: RunConfig, place: Place, system: System, messages: list[Message]) -> Sent:
    found = _sent(place, messages, run.parallel.tensor * run.parallel.sequence * run.parallel.data * 2,
                  run.train.grad_acc_steps, run.parallel.tensor)  # fmt: skip
    cut = run.parallel.tensor if system.cuts_pipe and not run.parallel.scatter_norms else 1
    # Each rank has an adapter, and sends by itself.
    level = place.level(run.parallel.tensor * run.parallel.sequence * run.parallel.data * 2)
    sent = sum(each.sent_bytes for each in messages) / run.train.grad_acc_steps / (level.gb_s * 1e9)
    return Sent(sent / cut, found.messages, level.latency_s, found.what, 2) if messages else Sent()
