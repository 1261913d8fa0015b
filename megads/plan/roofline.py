"""How long a step takes at least, line by line, on a device that is not here. Arithmetic; every line is an estimate.

Kernels run one after another: a line is its FLOPs by the rate of matrix products, or its bytes by the
bandwidth of memory. The bytes are those of megads' own kernels, operator by operator or compiled (``KERNELS``), and
those of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import choose
from megads.config.kernel_form import form_of
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.families.decoder import padded_vocab_size, spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.table import FAMILIES
from megads.plan import retro
from megads.plan.accelerators import Accelerator
from megads.plan.activations import Stage, rank_tokens
from megads.plan.flops import flops_per_token, products
from megads.plan.memory import stages, trained_of
from megads.plan.pipeline import idle_of
from megads.plan.traffic import Message, traffic

MATMUL = 0.66
"""Share of the peak that large matrix products reach."""

MEMORY = 0.835
"""Share of the memory bandwidth that streaming kernels reach."""

LINKS = 0.8
"""Share of the bandwidth of links and network that large collectives reach."""

KERNEL_S = 2e-6
"""Between two kernels."""

END_KERNELS = 5
"""Of embedding, head and loss."""

OVERLAP = 0.8
"""Share of matrix products and attention that reductions and gathers of the native engine may hide behind."""

ATTENTION_PASSES = 3.5
"""FLOPs of fused attention, forward and backward, in forward passes: the backward computes the scores again."""


@dataclass(frozen=True)
class Passes:
    """Reads and writes of an element, forward and backward together, and kernels of a layer.

    Attributes:
        norm: of an element of a norm.
        residual: of a residual sum.
        gate: of half of what a gated MLP's first product gives.
        plain: of a plain MLP's inner state.
        turned: of queries and keys that rotary positions turn, beyond ``joined``.
        joined: of what the product of queries, keys and values gives.
        logit_bytes: of a logit, from the product to its gradient.
        kernels: of a layer.
    """

    norm: float
    residual: float
    gate: float
    plain: float
    turned: float
    joined: float
    logit_bytes: float
    kernels: int


EAGER = Passes(norm=7, residual=6, gate=18, plain=5, turned=10, joined=2, logit_bytes=40, kernels=45)
"""Operator by operator; the loss in float32."""

COMPILED = Passes(norm=5, residual=3.5, gate=8, plain=5, turned=0, joined=4, logit_bytes=16, kernels=26)
"""Each stretch between products is a kernel: a residual sum is part of the norm behind it, the sum of gradients of
the norm's backward pass, and a gate reads its inputs again in place of keeping results. Logits are read twice and their
gradient is written in their own type."""


@dataclass(frozen=True)
class Bytes:
    """What an engine reads and writes per parameter, and its host.

    Attributes:
        first_sum: of the step's first micro-batch, for its bf16 gradient to become the float32 sum.
        sum: of every other one.
        clip: to zero float32 gradients, find their norm, and clip them.
        adam: of AdamW.
        cast: from masters to bf16.
        host_s: per step what the host does while the device waits.
    """

    first_sum: int
    sum: int
    clip: int
    adam: int
    cast: int
    host_s: float


BY_ENGINE = {
    "deepspeed": Bytes(first_sum=10, sum=10, clip=16, adam=28, cast=6, host_s=5e-3),
    # Nothing is zeroed, clipping is a factor of the update, and the host waits once, behind the update.
    "native": Bytes(first_sum=6, sum=10, clip=4, adam=28, cast=6, host_s=2e-3),
}


MORE_TOKENS = "more tokens a step"


@dataclass(frozen=True)
class Line:
    """One line: what takes ``seconds`` of a step, what would shorten it, and whether micro-batches do not repeat it."""

    name: str
    seconds: float
    cure: str = ""
    is_once: bool = False


@dataclass(frozen=True)
class Roofline:
    """A step on one device.

    Attributes:
        lines: of the slowest pipeline stage; their sum is the step.
        tokens: of a step, on all devices.
        mfu_full: share of the peak, with causal attention counted in full.
        mfu_causal: with half of it.
    """

    lines: tuple[Line, ...]
    tokens: int
    world_size: int
    mfu_full: float
    mfu_causal: float

    @property
    def step_s(self) -> float:
        """Return the seconds of a step."""
        return sum(line.seconds for line in self.lines)

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second and device."""
        return self.tokens / self.step_s / self.world_size

    def longest(self) -> list[Line]:
        """Return the lines that a change would shorten, the longest first."""
        return sorted((line for line in self.lines if line.cure), key=lambda line: -line.seconds)


def roofline(run: RunConfig, world_size: int, device: Accelerator, peak_tflops: float) -> Roofline:
    """Return the estimate for a derived ``run`` on ``world_size`` devices.

    Raises:
        ConfigError: the model is an encoder with a decoder.
    """
    if has_decoder(run.model):
        raise ConfigError(f"--roofline knows stacks of equal layers, not {run.model.family}; use another preset")
    peak = peak_tflops * 1e12
    slowest = max((tuple(_lines(run, world_size, stage, device, peak)) for stage in stages(run)), key=_seconds)
    pipeline = run.parallel.pipeline
    if pipeline > 1:
        share = idle_of(run)
        idle = share / (1 - share) * sum(line.seconds for line in slowest if not line.is_once)
        slowest += (Line("idle: first and last micro-batches of the pipeline", idle, "more micro-batches"),)
    tokens = run.train.global_batch * run.model.seq_length
    per_second = tokens / _seconds(slowest) / (world_size * peak)
    flops = flops_per_token(run)
    full, causal = flops.full or flops.model, flops.causal or flops.model
    return Roofline(slowest, tokens, world_size, full * per_second, causal * per_second)


def _seconds(lines: tuple[Line, ...]) -> float:
    return sum(line.seconds for line in lines)


def _lines(run: RunConfig, world_size: int, stage: Stage, device: Accelerator, peak: float) -> Iterator[Line]:
    passes = COMPILED if is_compiled(run, world_size) else EAGER
    by = BY_ENGINE[choose(run, world_size).kind]
    work = tuple(_of_products(run, stage, device, peak, passes))
    yield from work
    yield from _of_passes(run, stage, device, passes)
    yield from _of_parameters(run, stage, device, by)
    for message in _by_name(traffic(run, world_size, stage)):
        line = _sent(run, message, device)
        hides = message[0] == "data" and by is BY_ENGINE["native"]
        yield _exposed(run, line, message[2], _seconds(work)) if hides else line
    kernels = passes.kernels * stage.layers + END_KERNELS
    yield Line("gaps between kernels", run.train.grad_acc_steps * kernels * KERNEL_S, _unless(passes))
    yield Line("host", by.host_s, MORE_TOKENS, is_once=True)


def is_compiled(run: RunConfig, world_size: int) -> bool:
    """Return whether layers and loss of ``run`` are compiled on an accelerator."""
    return form_of(run, world_size, "cuda").kind == "compiled"


def _unless(passes: Passes) -> str:
    return "" if passes is COMPILED else "compiled blocks"


def _of_products(run: RunConfig, stage: Stage, device: Accelerator, peak: float, passes: Passes) -> Iterator[Line]:
    """Yield matrix products and attention; what is recomputed is computed once more."""
    model, grid = run.model, run.parallel
    found = products(model, model.seq_length)
    half = 0.5 if FAMILIES[model.family].samples in ("causal", "retro") else 1.0
    tokens = run.train.grad_acc_steps * rank_tokens(run) / grid.tensor
    layers = 6.0 * stage.layers * (found.projections + found.mlp)
    flops = layers + 6.0 * stage.has_head * found.logits
    core, again = 2.0 * stage.layers * found.core * half, 0.0
    if FAMILIES[model.family].samples == "retro":
        each = retro.layer_products(model, causal=True)
        layers = 6.0 * sum(part.rest for part in each) / model.seq_length
        core = 2.0 * sum(part.core for part in each) / model.seq_length
        flops = layers + 6.0 * found.logits
    share = _share_again(run, stage)
    attention = device.best_attention if passes is COMPILED else device.attention
    if run.recompute.granularity != "none":
        again = share * (core / (attention * peak) + layers / 3 / (MATMUL * peak) * _is_full(run))
    yield Line("matrix products", tokens * flops / (MATMUL * peak))
    yield Line("attention", tokens * core * ATTENTION_PASSES / (attention * peak), "a faster attention kernel")
    if again:
        yield Line("recomputation", tokens * again, "RECOMPUTE=none where memory allows")


def _is_full(run: RunConfig) -> float:
    return float(run.recompute.granularity == "full")


def _share_again(run: RunConfig, stage: Stage) -> float:
    """Return the share of a stage's layers that recomputation concerns."""
    given = run.recompute
    if given.granularity == "full" and given.method == "block" and stage.layers:
        return min(1.0, given.num_layers / stage.layers)
    return 1.0


def _of_passes(run: RunConfig, stage: Stage, device: Accelerator, by: Passes) -> Iterator[Line]:
    """Yield kernels that read and write activations."""
    model, grid, size = run.model, run.parallel, 4 if run.train.dtype == "fp32" else 2
    spec, tensor = spec_of(model), run.parallel.tensor
    rate = MEMORY * device.memory_gb_s * 1e9
    tokens = run.train.grad_acc_steps * rank_tokens(run)
    per_element = tokens * size / rate
    whole = tensor if grid.scatter_norms else 1
    widths = sum(weight.size for weight, _ in spec.norms())
    inner, is_gated = spec.matrices("mlp")[0].shape[0], len(spec.matrices("mlp")[0].parts) > 1
    passes = by.gate * inner / 2 if is_gated else by.plain * inner
    cure = _unless(by)
    yield Line("activation of the MLP", per_element * stage.layers * passes / tensor, cure)
    yield Line("norms", per_element * stage.layers * by.norm * widths / whole, cure)
    yield Line("residual sums", per_element * stage.layers * 2 * by.residual * model.hidden_size / whole, cure)
    if model.position_embedding == "rope":
        turned = (model.num_heads + model.num_kv_heads) * model.head_dim
        joined = turned + model.num_kv_heads * model.head_dim
        yield Line(
            "rotary positions", per_element * stage.layers * (by.turned * turned + by.joined * joined) / tensor, cure
        )
    if stage.has_head:
        logits = tokens * padded_vocab_size(model) / tensor
        name, cure = ("compiled loss", "") if by is COMPILED else ("loss in float32", "a loss in chunks")
        yield Line(name, logits * by.logit_bytes / rate, cure)


def _of_parameters(run: RunConfig, stage: Stage, device: Accelerator, by: Bytes) -> Iterator[Line]:
    """Yield what passes over parameters: sums per micro-batch, the update per step. ZeRO cuts the update."""
    count, rate = trained_of(run, stage), MEMORY * device.memory_gb_s * 1e9
    sharers = run.parallel.data * run.parallel.sequence if run.parallel.zero_stage else 1
    if run.train.dtype != "fp32" or run.train.grad_acc_steps > 1:
        sums = count * (by.first_sum + (run.train.grad_acc_steps - 1) * by.sum) / rate
        yield Line("sum of gradients", sums, "weight gradients that are summed by the product itself")
    yield Line("zero, norm and clip of gradients", count * by.clip / rate, MORE_TOKENS, is_once=True)
    yield Line("optimizer", count / sharers * by.adam / rate, MORE_TOKENS, is_once=True)
    if run.train.dtype != "fp32":
        yield Line("master weights to bf16", count / sharers * by.cast / rate, MORE_TOKENS, is_once=True)


def _by_name(messages: list[Message]) -> Iterator[tuple[str, int, list[Message]]]:
    """Yield axis, ranks and messages."""
    for axis in dict.fromkeys(each.axis for each in messages):
        found = [each for each in messages if each.axis == axis]
        yield axis, found[0].ranks, found


def _exposed(run: RunConfig, line: Line, messages: list[Message], work_s: float) -> Line:
    """Return what of a line does not hide behind products and attention, ``work_s`` of a step.

    Gradients of ZeRO 0 and 1 hide behind the last backward pass, and weights behind the next forward pass; of each
    pass one message hides behind nothing.
    """
    parts = run.train.grad_acc_steps
    times = parts if effective_zero_stage(run) > 1 else 1
    alone = times / max(each.count for each in messages)
    hidden = min(line.seconds * (1 - alone), OVERLAP * work_s * times / parts)
    return replace(line, name=f"{line.name}, not hidden", seconds=line.seconds - hidden)


CURES = {
    "tensor": "products that overlap with communication; a smaller TP",
    "seq": "a smaller SP",
    "data": "reduction that overlaps with the backward pass; more tokens a step",
    "pipe": "",
}


def _sent(run: RunConfig, group: tuple[str, int, list[Message]], device: Accelerator) -> Line:
    """Return an axis' communication, none of it hidden behind computation."""
    axis, ranks, messages = group
    grid = run.parallel
    inside = {"tensor": grid.tensor, "seq": grid.tensor * grid.sequence}
    reach = inside.get(axis, grid.tensor * grid.sequence * ranks)
    where, bandwidth = device.reaches(reach)
    seconds = sum(each.sent_bytes for each in messages) / (bandwidth * 1e9 * LINKS)
    is_once = axis == "data" and effective_zero_stage(run) < 2
    return Line(f"communication, {axis} axis of {ranks}, {where}", seconds, CURES[axis], is_once=is_once)
