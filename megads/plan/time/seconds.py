"""From a stage's work to seconds: every line of a micro-batch and of a step, with the fitted constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megads.plan.places.place import Place
from megads.plan.time.constants import Constants
from megads.plan.time.systems import Attention, System
from megads.plan.time.work import Sent, Work

Kind = Literal["compute", "memory", "communication", "idle", "host"]

MORE_TOKENS = "more tokens a step"
CURES = {
    "tensor": "products that overlap with communication; a smaller TP",
    "seq": "a smaller SP",
    "data": "reduction that overlaps with the backward pass; more tokens a step",
    "pipe": "",
}
HIDDEN_PIPE = 0.9
"""Share of what is sent to neighbouring stages that hides where a system sends while it computes."""


@dataclass(frozen=True)
class Line:
    """What takes ``seconds`` of a step, what would shorten it, and whether micro-batches do not repeat it."""

    name: str
    seconds: float
    kind: Kind
    cure: str = ""
    is_once: bool = False


@dataclass(frozen=True)
class Speeds:
    """Shares of full rates at a place.

    Attributes:
        matmul, fp8, core: of the peak.
        memory, links, network: of bandwidths.
        host: factor of the host's times.
    """

    matmul: float
    fp8: float
    core: float
    memory: float
    links: float
    network: float
    host: float


def speeds_of(place: Place, attention: Attention, by: Constants) -> Speeds:
    """Return the shares at ``place`` with an attention kernel."""
    device, rates = place.device, place.rates
    matmul = device.matmul or by.matmul(device.device_name)
    power = device.power**by.power
    core = {
        "unfused": by.scores * matmul,
        "eager": by.scores * matmul,
        "slow": by.slow_attention,
        "fast": by.attention * device.best_attention,
    }.get(attention, by.attention * device.attention)
    return Speeds(
        matmul * power * rates.matmul,
        min(by.matmul_fp8, device.matmul or 1) * power * rates.matmul,
        core * rates.matmul,
        by.memory * rates.memory,
        by.links * rates.links,
        by.network * rates.links,
        1 / rates.host,
    )


def micro_batch(work: Work, speeds: Speeds, system: System, by: Constants, cure: str = "") -> Iterator[Line]:
    """Yield what a micro-batch takes on a stage."""
    products = work.products / speeds.matmul + work.products_8 / speeds.fp8
    operands = (by.operands * work.operands + work.casts) / speeds.memory
    yield Line("matrix products", products + operands, "compute")
    parts = by.ring * (work.seq.ranks - 1).bit_length() if system.sequence == "ring" else 0.0
    core = (1 + parts) * work.core / speeds.core + work.scores / speeds.memory
    yield Line("attention", core, "compute", "a faster attention kernel")
    of_layers, of_core, of_scores, of_operands = work.again
    head = work.head / speeds.matmul
    again = of_layers * (products - head) / 3 + of_operands * operands
    again += work.passes_again / speeds.memory
    again += of_core * (1 + parts) * work.core / speeds.core + of_scores * work.scores / speeds.memory
    if again:
        yield Line("recomputation", again, "compute", "RECOMPUTE=none where memory allows")
    device = products + operands + core + again
    for name, seconds in work.passes.items():
        yield Line(name, seconds / speeds.memory, "memory", cure)
        device += seconds / speeds.memory
    if work.sums:
        yield Line("sum of gradients", work.sums / speeds.memory, "memory", "weight gradients summed by the product")
    for line in _sent(work, speeds, system, by):
        device += line.seconds
        yield line
    gaps, waits = work.kernels * by.gap_s * speeds.host, work.kernels * by.kernel_s * speeds.host
    waits = waits if system.waits else max(0.0, waits - device - gaps)
    yield Line("gaps between kernels", gaps + waits, "host", cure or ("a larger micro-batch" if waits else ""))


def _sent(work: Work, speeds: Speeds, system: System, by: Constants) -> Iterator[Line]:
    hidden = {
        "tensor": by.tensor_hidden if system.hides_tensor else 0.0,
        "seq": by.ring_hidden if system.sequence == "ring" else 0.0,
        "pipe": HIDDEN_PIPE if system.hides_pipe else 0.0,
    }
    for axis, sent in (("tensor", work.tensor), ("seq", work.seq), ("pipe", work.pipe)):
        if sent.messages:
            yield Line(_name(axis, sent), (1 - hidden[axis]) * taken(sent, speeds), "communication", CURES[axis])


def _name(axis: str, sent: Sent) -> str:
    return f"communication, {axis} axis of {sent.ranks}, {sent.what}"


def taken(sent: Sent, speeds: Speeds) -> float:
    """Return the seconds of messages with nothing to hide behind."""
    share = speeds.network if sent.what == "between hosts" else speeds.links
    return sent.seconds / share + sent.messages * sent.latency_s


def once(
    work: Work, speeds: Speeds, system: System, by: Constants, micro_s: float, steps: int, *, hides: bool
) -> Iterator[Line]:
    """Yield what a step takes besides its micro-batches, of which each takes ``micro_s``."""
    for name, seconds in work.updates.items():
        yield Line(name, seconds / speeds.memory, "memory", MORE_TOKENS, is_once=True)
    if work.data.messages:
        seconds = taken(work.data, speeds)
        name = _name("data", work.data)
        if hides:
            # Gradients of ZeRO 0 and 1 hide behind the last backward pass, and weights behind the next forward pass;
            # of each pass one message hides behind nothing.
            alone = min(1.0, work.data_times / work.data_parts)
            seconds -= by.data_hidden * min(seconds * (1 - alone), micro_s * work.data_times)
            name += ", not hidden"
        yield Line(name, seconds, "communication", CURES["data"], is_once=True)
    yield Line("host", work.host_s * speeds.host, "host", MORE_TOKENS, is_once=True)
