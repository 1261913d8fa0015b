"""How long a step takes at least, line by line, on a device that is not here. Arithmetic; every line is an estimate.

Kernels run one after another: a line is its FLOPs by the rate of matrix products, or its bytes by the
bandwidth of memory. The bytes are those of megads' own kernels, not compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.config.estimate.accelerators import Accelerator
from megads.config.estimate.activations import Stage, rank_tokens
from megads.config.estimate.flops import flops_per_token, products
from megads.config.estimate.memory import parameters_of, stages
from megads.config.estimate.pipeline import idle_of
from megads.config.estimate.traffic import Message, traffic
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.families.decoder import padded_vocab_size, spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.table import FAMILIES

MATMUL = 0.66
"""Share of the peak that large matrix products reach."""

MEMORY = 0.835
"""Share of the memory bandwidth that streaming kernels reach."""

LINKS = 0.8
"""Share of the bandwidth of links and network that large collectives reach."""

KERNEL_S, HOST_S = 2e-6, 5e-3
"""Between two kernels; and per step what the host does while the device waits."""

LAYER_KERNELS, END_KERNELS = 45, 5
"""Of a layer, forward and backward; and of embedding, head and loss."""

ATTENTION_PASSES = 3.5
"""FLOPs of fused attention, forward and backward, in forward passes: the backward computes the scores again."""

NORM_PASSES, RESIDUAL_PASSES, GATE_PASSES, ACTIVATION_PASSES = 7, 6, 18, 5
"""Reads and writes, forward and backward, of an element: of a norm, a residual sum, a gated and a plain MLP."""

LOGIT_BYTES = 40
"""Of a logit, from the product to its gradient, in float32."""

ADAM_BYTES, CLIP_BYTES, CAST_BYTES, SUM_BYTES = 28, 16, 6, 10
"""Per parameter: AdamW; zero, norm and clip of float32 gradients; masters to bf16; a bf16 gradient into its sum."""


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
    yield from _of_products(run, stage, device, peak)
    yield from _of_passes(run, stage, device)
    yield from _of_parameters(run, world_size, stage, device)
    for message in _by_name(traffic(run, world_size, stage)):
        yield _sent(run, message, device)
    kernels = LAYER_KERNELS * stage.layers + END_KERNELS
    yield Line("gaps between kernels", run.train.grad_acc_steps * kernels * KERNEL_S, "compiled blocks")
    yield Line("host", HOST_S, MORE_TOKENS, is_once=True)


def _of_products(run: RunConfig, stage: Stage, device: Accelerator, peak: float) -> Iterator[Line]:
    """Yield matrix products and attention; what is recomputed is computed once more."""
    model, grid = run.model, run.parallel
    found = products(model, model.seq_length)
    half = 0.5 if FAMILIES[model.family].samples == "causal" else 1.0
    tokens = run.train.grad_acc_steps * rank_tokens(run) / grid.tensor
    layers = 6.0 * stage.layers * (found.projections + found.mlp)
    flops = layers + 6.0 * stage.has_head * found.logits
    core, again = 2.0 * stage.layers * found.core * half, 0.0
    share = _share_again(run, stage)
    if run.recompute.granularity != "none":
        again = share * (core / (device.attention * peak) + layers / 3 / (MATMUL * peak) * _is_full(run))
    yield Line("matrix products", tokens * flops / (MATMUL * peak))
    yield Line("attention", tokens * core * ATTENTION_PASSES / (device.attention * peak), "a faster attention kernel")
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


def _of_passes(run: RunConfig, stage: Stage, device: Accelerator) -> Iterator[Line]:
    """Yield kernels that read and write activations."""
    model, grid, size = run.model, run.parallel, 4 if run.train.dtype == "fp32" else 2
    spec, tensor = spec_of(model), run.parallel.tensor
    rate = MEMORY * device.memory_gb_s * 1e9
    tokens = run.train.grad_acc_steps * rank_tokens(run)
    per_element = tokens * size / rate
    whole = tensor if grid.scatter_norms else 1
    widths = sum(weight.size for weight, _ in spec.norms())
    inner, is_gated = spec.matrices("mlp")[0].shape[0], len(spec.matrices("mlp")[0].parts) > 1
    passes = GATE_PASSES * inner / 2 if is_gated else ACTIVATION_PASSES * inner
    cure = "compiled blocks"
    yield Line("activation of the MLP", per_element * stage.layers * passes / tensor, cure)
    yield Line("norms", per_element * stage.layers * NORM_PASSES * widths / whole, cure)
    yield Line("residual sums", per_element * stage.layers * 2 * RESIDUAL_PASSES * model.hidden_size / whole, cure)
    if model.position_embedding == "rope":
        turned = (model.num_heads + model.num_kv_heads) * model.head_dim
        joined = turned + model.num_kv_heads * model.head_dim
        yield Line("rotary positions", per_element * stage.layers * (10 * turned + 2 * joined) / tensor, cure)
    if stage.has_head:
        logits = tokens * padded_vocab_size(model) / tensor
        yield Line("loss in float32", logits * LOGIT_BYTES / rate, "a loss in chunks")


def _of_parameters(run: RunConfig, world_size: int, stage: Stage, device: Accelerator) -> Iterator[Line]:
    """Yield what passes over parameters: sums per micro-batch, the update per step. ZeRO cuts the update."""
    count, rate = parameters_of(run, stage), MEMORY * device.memory_gb_s * 1e9
    sharers = run.parallel.data * run.parallel.sequence if run.parallel.zero_stage else 1
    if run.train.dtype != "fp32" or run.train.grad_acc_steps > 1:
        sums = run.train.grad_acc_steps * count * SUM_BYTES / rate
        yield Line("sum of gradients", sums, "weight gradients that are summed by the product itself")
    yield Line("zero, norm and clip of gradients", count * CLIP_BYTES / rate, MORE_TOKENS, is_once=True)
    yield Line("optimizer", count / sharers * ADAM_BYTES / rate, MORE_TOKENS, is_once=True)
    if run.train.dtype != "fp32":
        yield Line("master weights to bf16", count / sharers * CAST_BYTES / rate, MORE_TOKENS, is_once=True)


def _by_name(messages: list[Message]) -> Iterator[tuple[str, int, list[Message]]]:
    """Yield axis, ranks and messages."""
    for axis in dict.fromkeys(each.axis for each in messages):
        found = [each for each in messages if each.axis == axis]
        yield axis, found[0].ranks, found


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
    is_once = axis == "data" and max(each.count for each in messages) == 1
    return Line(f"communication, {axis} axis of {ranks}, {where}", seconds, CURES[axis], is_once=is_once)
