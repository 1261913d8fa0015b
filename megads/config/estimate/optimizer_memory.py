"""What optimizers keep and what they work with, in bytes."""

from __future__ import annotations

from megads.config.estimate.activations import Stage
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.families.decoder import spec_of

AT_ONCE = 1 << 26
"""Numbers that the owner of whole parameters gathers together, and their gradients."""

WORK_BYTES = 24
"""Of a number that is stepped as part of a whole parameter: weight, gradient and what is on its way, in float32.

16 were measured, 20 with tensor parallelism; the rest is for what the rule works with.
"""

ADAM_NUMBERS = 2


def state_bytes(run: RunConfig) -> int:
    """Return the bytes of the optimizer's state for a parameter, without a float32 master copy."""
    return round(4 * OPTIMIZERS[run.optim.optimizer].numbers)


def whole_state_bytes(run: RunConfig, stage: Stage, ranks: int) -> int:
    """Return the state of an optimizer that steps whole parameters, on the one of ``ranks`` that has most of it.

    They share it for every ZeRO stage, and it is never offloaded. A share is even, but at least that
    of the largest parameter, which has one owner.
    """
    row = OPTIMIZERS[run.optim.optimizer]
    of_layers, of_tables = 4 * row.numbers, 4 * (ADAM_NUMBERS if row.rest else row.numbers)
    matrices, tables = _matrices(run), _tables(run, stage)
    total = stage.layers * sum(matrices) * of_layers + sum(tables) * of_tables
    largest = max(
        [0, *(max(matrices) * of_layers for _ in range(min(1, stage.layers))), *(of_tables * t for t in tables)]
    )
    return round(max(total / ranks, largest))


def whole_work_bytes(run: RunConfig, stage: Stage, ranks: int) -> int:
    """Return what a rank holds while it steps whole parameters, a few at a time: never less than the largest."""
    matrices, tables = _matrices(run), _tables(run, stage)
    largest = max([*tables, *(matrices if stage.layers else [])], default=0)
    share = (stage.layers * sum(matrices) + sum(tables)) // ranks
    once = 1 if run.optim.optimizer.endswith("perlayer") else AT_ONCE
    return WORK_BYTES * max(largest, min(once, share))


def _matrices(run: RunConfig) -> list[int]:
    """Return the elements of every unsplit matrix of a layer: q, k and v are one, and so are gate and up."""
    return [each.size for each in spec_of(run.model).matrices()]


def _tables(run: RunConfig, stage: Stage) -> list[int]:
    """Return the elements of the unsplit embedding and output layer of a stage."""
    tables = spec_of(run.model).tables
    first, last = tables[:1] if stage.has_embedding else (), tables[-1:] if stage.has_head else ()
    return [each.size for each in dict.fromkeys((*first, *last))]
