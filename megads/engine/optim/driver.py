"""What an optimizer needs besides gradients: whole parameters, a Hessian, other weights for evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from megads.comm.groups import Groups
from megads.comm.timeout import group_timeout_s
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.engine.deepspeed.state import EngineState
from megads.engine.optim.build import make_optimizer
from megads.engine.optim.exchange import Team
from megads.engine.optim.sophia import SophiaG
from megads.engine.optim.step_counts import Counted
from megads.engine.optim.whole_parameters import WholeOptimizer


class Driver:
    """Drives the optimizer of one engine.

    Args:
        run: derived settings.
        module: whose parameters it steps.

    Attributes:
        row: what kind it is.
        optimizer: what DeepSpeed is given.
    """

    state: EngineState

    def __init__(self, run: RunConfig, module: nn.Module):
        self.run, self.row = run, OPTIMIZERS[run.optim.optimizer]
        self.optimizer = make_optimizer(run, module)
        self.counted: Counted | None = None

    def attach(self, state: EngineState, groups: Groups, device: torch.device) -> None:
        """Learn where DeepSpeed has put the parameters. Collective."""
        self.state = state
        if isinstance(self.optimizer, WholeOptimizer):
            team = Team.of(groups, device, group_timeout_s(self.run.launch.timeout_s))
            self.optimizer.attach(team, state.calls(), state.spread_one if state.holds_plain_gradients else None)
        elif self.row.scalars:
            self.counted = Counted(self.optimizer, self.row.scalars)

    def begin(self) -> None:
        """Take note that a step begins."""
        if self.counted is not None:
            self.counted.begin()

    # Sophia's Hessian

    def looks_at_hessian(self) -> bool:
        """Return whether the Hessian is to be estimated before the step that begins: every interval, at first too."""
        if not isinstance(self.optimizer, SophiaG):
            return False
        return int(self.state.steps()) % self.run.optim.sophia_interval == 0

    @contextlib.contextmanager
    def estimating(self, tokens: int) -> Iterator[None]:
        """Have a step taken here change the Hessian and nothing else: gradients are those of drawn labels.

        What the engine and the loss scaler count is as before, unless the step was skipped.

        Args:
            tokens: whose mean loss is differentiated.
        """
        assert isinstance(self.optimizer, SophiaG)
        engine = self.state.engine
        counts = {name: getattr(engine, name) for name in ("global_steps", "global_samples", "skipped_steps")}
        scaler = self.state.scaler_counts()
        clips = [(each, each.clip_grad) for each in (engine.optimizer,) if hasattr(each, "clip_grad")]
        limit, engine._config.gradient_clipping = engine._config.gradient_clipping, 0.0
        for each, _ in clips:
            each.clip_grad = 0.0
        self.optimizer.tokens = tokens
        try:
            yield
        finally:
            self.optimizer.tokens = 0
            engine._config.gradient_clipping = limit
            for each, clip in clips:
                each.clip_grad = clip
        if engine.skipped_steps == counts["skipped_steps"]:
            self.state.set_scaler_counts(scaler)
        for name, value in counts.items():
            setattr(engine, name, value)

    # Schedule-free averages

    @contextlib.contextmanager
    def in_use(self, spread: Callable[[], None]) -> Iterator[None]:
        """Have the model hold the weights that are for use while this lasts. Collective where they are others.

        A schedule-free optimizer takes gradients at a point between its iterate and its
        average (arXiv 2405.15682); the average is the model. Training resumes from the very
        bits that were there before.

        Args:
            spread: the engine's, which brings changed weights to where they are computed with.
        """
        if not self.row.is_averaged or not self.state.is_materialised:
            yield
            return
        optim = self.run.optim
        weight = average_weight(optim.adam_beta1 if "adam" in self.row.name else optim.sgd_momentum)
        kept = []
        with torch.no_grad():
            for flat, iterate in self.state.flat_states("z"):
                kept.append((flat, flat.detach().clone()))
                flat.lerp_(iterate, weight)
        spread()
        try:
            yield
        finally:
            with torch.no_grad():
                for flat, before in kept:
                    flat.copy_(before)
            spread()

    # State

    def states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the state of the parameters that this rank steps as a whole; see :class:`WholeOptimizer`."""
        if isinstance(self.optimizer, WholeOptimizer):
            yield from self.optimizer.states()

    def load_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of the parameters that this rank steps as a whole."""
        if isinstance(self.optimizer, WholeOptimizer):
            self.optimizer.load_states(state_of)


def average_weight(beta: float) -> float:
    """Return how far, from the point of the gradient to the iterate ``z``, the average is: beyond the first."""
    return 1 - 1 / beta
