"""Numbers of an engine's model on samples, over all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.engine.micro_batches import MicroBatch
from megads.engine.upload import to_device


class Driver(Protocol):
    """What drives the optimizer."""

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Have the model hold the weights that are to be used."""


class Measured(Protocol):
    """What is used of an engine."""

    groups: Groups
    device: torch.device

    @property
    def module(self) -> nn.Module:
        """The model."""

    @property
    def driver(self) -> Driver:
        """What drives its optimizer."""

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Return what a pass runs in."""

    def eval_parts(self, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]) -> Iterable[Tensor | None]:
        """Return ``measure`` of every part's outputs and labels, in the model's forward pass.

        None of those that another stage has.
        """


def measured(
    engine: Measured,
    parts: Sequence[MicroBatch],
    measure: Callable[[Any, Any], Tensor],
    dtype: torch.dtype,
    columns: int = 2,
) -> Tensor:
    """Return sums over what counts in every sample on all ranks, ``[samples, columns]``. Collective.

    Args:
        parts: of one number of samples, as many on every rank.
        measure: returns the sums of this sequence rank's tokens, ``[micro_batch, columns]``, of outputs and labels.
    """
    engine.module.eval()
    parts = to_device(parts, engine.device)
    groups = engine.groups
    shape = (len(parts), groups.data_size, len(parts[0].labels), columns)
    sums = torch.zeros(shape, dtype=dtype, device=engine.device)
    # What is gathered for the pass are the weights that are to be used.
    with torch.no_grad(), engine.driver.averaged(), engine.surroundings():
        for mine, found in zip(sums[:, groups.data_rank], engine.eval_parts(parts, measure), strict=True):
            # Every tensor rank finds the same; it is to be summed once.
            if found is not None and groups.tensor_rank == 0:
                mine.copy_(found)
    if groups.world is not None:
        dist.all_reduce(sums, group=groups.world)
    return sums.flatten(0, 2)
