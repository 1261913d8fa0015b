"""What optimizers hold that step whole parameters: their state, and what is gathered to be stepped. Arithmetic."""

from __future__ import annotations

from itertools import chain

from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.families.decoder import spec_of
from megads.plan.parts.activations import Stage

AT_ONCE = 1 << 26
"""Numbers that the owner of whole parameters gathers together, and their gradients."""

WORK_BYTES = 24
"""Of a number that is stepped as part of a whole parameter: weight, gradient and what is on its way, in float32.

16 were measured, 20 with tensor parallelism; the rest is for what the rule works with.
"""

ADAM_FLOATS = 2


def whole_state_bytes(run: RunConfig, stage: Stage, ranks: int) -> int:
    """Return the state of an optimizer that steps whole parameters, on the one of ``ranks`` that has most of it.

    They share it for every ZeRO stage, and it is never offloaded. A share is even, but at least that
    of the largest parameter, which has one owner.
    """
    row = OPTIMIZERS[run.optim.optimizer]
    of_layers, of_tables = 4 * row.floats, 4 * (ADAM_FLOATS if row.rest else row.floats)
    matrices, tables = _matrices(run, stage), _tables(run, stage)
    total = sum(matrices) * of_layers + sum(tables) * of_tables
    largest = max([0, *(size * of_layers for size in matrices), *(size * of_tables for size in tables)])
    return round(max(total / ranks, largest))


def whole_work_bytes(run: RunConfig, stage: Stage, ranks: int) -> int:
    """Return what a rank holds while it steps whole parameters, a few at a time: never less than the largest."""
    sizes = [*_matrices(run, stage), *_tables(run, stage)]
    once = 1 if OPTIMIZERS[run.optim.optimizer].one_by_one else AT_ONCE
    return WORK_BYTES * max(max(sizes, default=0), min(once, sum(sizes) // ranks))


def _matrices(run: RunConfig, stage: Stage) -> list[int]:
    """Return the elements of the unsplit matrices of a stage's layers: q, k and v are one, and so are gate and up."""
    spec = spec_of(run.model)
    of_stack = [
        [each.size for each in stack.layer if spec.is_trained(each) and (each.kind == "matrix" or spec.is_adapted)]
        for stack in spec.stacks
    ]
    of_layer = [sizes for sizes, stack in zip(of_stack, spec.stacks, strict=True) for _ in range(stack.num_layers)]
    return list(chain.from_iterable(of_layer[number] for number in stage.numbers))


def _tables(run: RunConfig, stage: Stage) -> list[int]:
    """Return the elements of the unsplit embedding, positions and output layer of a stage."""
    spec = spec_of(run.model)
    if spec.is_adapted:
        return []
    first, last = spec.embedding if stage.has_embedding else (), spec.tables[-1:] if stage.has_head else ()
    return [each.size for each in dict.fromkeys((*first, *last))]
