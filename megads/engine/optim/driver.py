"""What an optimizer needs besides gradients, on any engine: when to estimate a Hessian, and averages for use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.engine.optim.sophia import SophiaG


class DrivenState(Protocol):
    """What a driver uses of an engine's state."""

    def steps(self) -> float:
        """Return the steps that tensors have counted."""

    def flat_states(self, kind: str) -> list[tuple[Tensor, Tensor]]:
        """Return what the optimizer steps, and its state of one kind; empty before the first step."""

    def sync_from_masters(self) -> None:
        """Update everything that follows from what the optimizer steps. Collective."""


class OptimizerDriver:
    """Drives the optimizer of one engine.

    Attributes:
        row: what kind it is.
        optimizer: what steps the weights.
        state: of the engine, once that is made.
    """

    state: DrivenState
    optimizer: torch.optim.Optimizer

    def __init__(self, run: RunConfig):
        self.run, self.row = run, OPTIMIZERS[run.optim.optimizer]

    def looks_at_hessian(self) -> bool:
        """Return whether the Hessian is to be estimated before the step that begins: every interval, at first too."""
        if not isinstance(self.optimizer, SophiaG):
            return False
        return int(self.state.steps()) % self.run.optim.sophia_interval == 0

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the model hold the averaged weights of a schedule-free optimizer during the block. Collective.

        Such an optimizer takes gradients at a point between its iterate and its average
        (arXiv 2405.15682); the average is the model. Afterwards the weights are bitwise what they were.
        """
        flats = self.state.flat_states("z") if self.row.is_averaged else []
        if not flats:
            yield
            return
        # From the point of the gradient to the iterate z, the average is beyond the first.
        weight = 1 - 1 / getattr(self.run.optim, self.row.averages_by)
        saved = [flat.detach().clone() for flat, _ in flats]
        with torch.no_grad():
            for flat, iterate in flats:
                flat.lerp_(iterate, weight)
        self.state.sync_from_masters()
        try:
            yield
        finally:
            with torch.no_grad():
                for (flat, _), before in zip(flats, saved, strict=True):
                    flat.copy_(before)
            self.state.sync_from_masters()
