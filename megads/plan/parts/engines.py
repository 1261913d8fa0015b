"""What an engine holds for the parameters of a rank: weights, gradients, optimizer, buffers. Arithmetic, no torch."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.families.decoder import spec_of
from megads.families.spec import local_size
from megads.plan.conventions import MEGADS, Conventions
from megads.plan.parts.activations import Stage

SMALL_UNITS, IN_FLIGHT = 4, 2
"""Of the native engine: the fewest units of ZeRO 0 to 2, and reductions at a time (``megads.engine.native``)."""


@dataclass(frozen=True)
class Held:
    """Bytes that an engine holds on a rank, by kind; on the device, unless that is a CPU."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int


def held(
    run: RunConfig, world_size: int, stage: Stage, count: int, state: int, conventions: Conventions = MEGADS
) -> Held:
    """Return what the engine of a derived ``run`` holds.

    Args:
        count: parameters of a rank of ``stage``, before ZeRO cuts them.
        state: bytes of the optimizer's state for each that is trained; 0 where others step it.
    """
    sharers = data_degree(run, world_size) * run.parallel.sequence
    if conventions.parameters:
        return _by_conventions(run, stage, count, sharers, conventions)
    by = _by_native if choose(run, world_size).kind == "native" else _by_deepspeed
    if not spec_of(run.model).is_adapted:
        return by(run, stage, count, state, sharers)
    trained = sum(sections_of(run, stage, trained=True))
    found, size = by(run, stage, trained, state, sharers), 4 if run.train.dtype == "fp32" else 2
    is_shared = effective_zero_stage(run) == 3
    frozen = size * (count - trained) // (sharers if is_shared else 1)
    gathered = _gathered(sections_of(run, stage), size) if is_shared and sharers > 1 else 0
    return replace(found, weights=found.weights + frozen, buffers=found.buffers + gathered)


def _by_conventions(run: RunConfig, stage: Stage, count: int, sharers: int, conventions: Conventions) -> Held:
    """Return what another system holds, by its bytes of a parameter."""
    each, zero = conventions.parameters[run.train.dtype], effective_zero_stage(run)
    sharers = max(1, sharers // conventions.copies)
    shares = [sharers if zero >= stage_of else 1 for stage_of in (3, 2, 1)]
    weights, gradients, optimizer = (
        round(count * size / share)
        for size, share in zip((each.weight, each.gradient, each.optimizer), shares, strict=True)
    )
    if conventions.owns_parameters and zero:
        optimizer = max(optimizer, round(each.optimizer * max(sections_of(run, stage))))
    whole = 0
    if zero == 3 and sharers > 1:
        ordered = sorted(sections_of(run, stage), reverse=True)
        whole = conventions.gathered_bytes * sum(ordered[: conventions.gathered])
    return Held(weights, gradients, optimizer, whole)


def native_zero_stage(run: RunConfig, sharers: int) -> int:
    """Return the ZeRO stage that the native engine computes; one rank has nobody to share with."""
    return effective_zero_stage(run) if sharers > 1 else 0


def _by_native(run: RunConfig, stage: Stage, count: int, state: int, sharers: int) -> Held:
    """Return what flat units take.

    Gradients are summed in float32: whole under ZeRO 0 and 1, of what a rank owns under ZeRO 2 and 3, where those of a
    unit on their way stand in a buffer. Masters of a float32 model are its weights, unless they are offloaded.
    """
    zero, size = native_zero_stage(run, sharers), 4 if run.train.dtype == "fp32" else 2
    sections = sections_of(run, stage, trained=spec_of(run.model).is_adapted)
    units = sections if zero == 3 else joined(sections, run.deepspeed.reduce_bucket_size)
    own = sum(sections)
    share = own // sharers if zero else own
    is_offloaded = run.machine != "cpu" and run.deepspeed.offload_optimizer != "none"
    masters = 4 * share if run.train.dtype != "fp32" or is_offloaded else 0
    weights = size * (share if zero == 3 else own) + size * (count - own)  # a tied copy is in no unit
    if zero == 3 and run.deepspeed.hpz_partition_size > 1:
        weights += size * own // run.deepspeed.hpz_partition_size
    return Held(
        weights=weights,
        gradients=4 * (own if zero < 2 else share),
        optimizer=0 if is_offloaded else masters + share * state,
        buffers=_reduction_buffers(run, units, zero) + (_gathered(sections, size) if zero == 3 else 0),
    )


def sections_of(run: RunConfig, stage: Stage, *, trained: bool = False) -> list[int]:
    """Return the parameters of embedding, layers and output of a rank of ``stage``; copies are another stage's.

    With ``trained`` those that are not frozen, of what has any.
    """
    spec, tensor = spec_of(run.model), run.parallel.tensor
    embedding, *layers, output = spec.step_sizes(tensor, trained=trained)
    of_layers = layers[stage.first : stage.first + stage.layers]
    if trained and spec.is_adapted:
        return of_layers
    return [
        *([embedding] if stage.has_embedding else []),
        *of_layers,
        *([output - local_size(spec.copied, tensor)] if stage.has_head else []),
    ]


def joined(sizes: list[int], bucket: int) -> list[int]:
    """Return the sizes of units: neighbours up to ``bucket`` elements, but no more than a 4th of all."""
    limit = min(bucket, max(1, math.ceil(sum(sizes) / SMALL_UNITS)))
    found: list[int] = []
    for size in sizes:
        if found and found[-1] + size <= limit:
            found[-1] += size
        else:
            found.append(size)
    return found


def _reduction_buffers(run: RunConfig, units: list[int], zero: int) -> int:
    """Return what stands in buffers that are kept: of every size of a unit as many as may be in use."""
    total = 0
    for size, number in Counter(units).items():
        sums = min(IN_FLIGHT, number) + 1 if zero > 1 else 0
        results = min(IN_FLIGHT, number) if zero and run.machine == "cpu" else 0  # of gloo's exchange
        total += 4 * size * (sums + results)
    return total


def _gathered(sections: list[int], size: int) -> int:
    """Return the weights that are whole during a pass of ZeRO 3: what is no layer, and two layers."""
    ordered = sorted(sections, reverse=True)
    return size * sum(ordered[:4])


def _by_deepspeed(run: RunConfig, stage: Stage, count: int, state: int, sharers: int) -> Held:
    zero, half = effective_zero_stage(run), run.train.dtype != "fp32"
    size, accumulated = 2 if half else 4, 4 if run.deepspeed.grad_accum_dtype == "fp32" else 2
    weights, gradients = count * size, count * 4
    has_masters = half or run.deepspeed.offload_optimizer != "none"
    optimizer = count * ((4 if has_masters else 0) + state)
    if zero >= 1:
        optimizer //= sharers
    if zero >= 2:
        gradients = count * accumulated // sharers
    if zero == 3:
        weights //= sharers
        if run.deepspeed.hpz_partition_size > 1:
            weights += count * size // run.deepspeed.hpz_partition_size
    moves = run.machine != "cpu"
    if moves and run.deepspeed.offload_optimizer != "none":
        optimizer, gradients = 0, 0 if zero >= 2 else gradients
    if moves and run.deepspeed.offload_params != "none":
        weights = 0
    return Held(weights, gradients, optimizer, _deepspeed_buffers(run, zero, count, sharers))


def _deepspeed_buffers(run: RunConfig, zero: int, count: int, sharers: int) -> int:
    if zero == 0:
        # Gradients are copied into one piece of at most 500 million to be summed.
        return 4 * min(count, 500_000_000) if sharers > 1 else 0
    buckets = 2 if run.parallel.ddp_impl == "torch" else 1
    result = 4 * min(count, run.deepspeed.reduce_bucket_size) * buckets
    if zero == 3 and sharers > 1:
        result += min(count, run.deepspeed.max_live_parameters) * (4 if run.train.dtype == "fp32" else 2)
    return result
