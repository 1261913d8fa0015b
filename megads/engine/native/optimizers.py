"""The optimizer of the native engine: what it steps, and what it needs besides gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import nn

from megads.comm.groups import group_timeout_s
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.engine.native.state import NativeState, Owner
from megads.engine.native.units import Unit
from megads.engine.optim.build import group_of, labels, make_optimizer
from megads.engine.optim.driver import OptimizerDriver
from megads.engine.optim.exchange import Team
from megads.engine.optim.sophia import SophiaG
from megads.engine.optim.whole_parameters import WholeOptimizer


class Driven(Owner, Protocol):
    """What is used of the engine."""

    state: NativeState
    clip_grad: float


class NativeDriver(OptimizerDriver):
    """Drives the optimizer of one engine.

    Every rank of a stage has the same groups, with runs that may be empty, so that all count the same steps.
    """

    state: NativeState
    engine: Driven

    def __init__(self, run: RunConfig, units: Sequence[Unit]):
        super().__init__(run)
        self.optimizer = make_optimizer(run, _groups(run, units))

    def attach(self, engine: Driven) -> None:
        """Learn where the parameters are. Collective."""
        self.engine, self.state = engine, engine.state
        if isinstance(self.optimizer, WholeOptimizer):
            team = Team.of(engine.groups, engine.device, group_timeout_s(self.run.launch.timeout_s))
            self.optimizer.attach(team, self.state.calls(), None)
            # Under ZeRO 0 a rank holds all of every weight, and got only what it answers for.
            self.optimizer.register_step_post_hook(lambda *_: self.state.join())

    @contextlib.contextmanager
    def estimating(self, tokens: int) -> Iterator[None]:
        """Have a step taken here change the Hessian and nothing else: gradients are those of drawn labels.

        The loss is the mean over ``tokens`` tokens. What the engine and the loss scale count is as before, unless
        the step was skipped.
        """
        assert isinstance(self.optimizer, SophiaG)
        engine = self.engine
        limit, skipped = engine.clip_grad, engine.skipped_steps
        scale = engine.scaler.counts() if engine.scaler is not None else {}
        engine.clip_grad, self.optimizer.tokens = 0.0, tokens
        try:
            yield
        finally:
            engine.clip_grad, self.optimizer.tokens = limit, 0
        if engine.skipped_steps == skipped and engine.scaler is not None:
            engine.scaler.set_counts(scale)
        engine.skipped_steps = skipped


def _groups(run: RunConfig, units: Sequence[Unit]) -> list[dict[str, object]]:
    """Return a group for every label of the stage: of its runs or, for rules of whole parameters, of a placeholder."""
    found = []
    for label in labels(run):
        runs = [each.weight for unit in units for each in unit.runs if each.label == label]
        if runs and OPTIMIZERS[run.optim.optimizer].is_whole:
            runs = [nn.Parameter(torch.empty(0))]
        if runs:
            found.append(group_of(label, runs, run))
    return found
