"""What an optimizer needs of DeepSpeed besides gradients: whole parameters, a Hessian, counts of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from megads.comm.groups import Groups, group_timeout_s
from megads.config.schema import RunConfig
from megads.engine.deepspeed.state import DeepSpeedState
from megads.engine.optim.build import make_optimizer, parameter_groups
from megads.engine.optim.driver import OptimizerDriver
from megads.engine.optim.exchange import Team
from megads.engine.optim.sophia import SophiaG
from megads.engine.optim.whole_parameters import WholeOptimizer


class Driver(OptimizerDriver):
    """Drives the optimizer that DeepSpeed is given."""

    state: DeepSpeedState

    def __init__(self, run: RunConfig, module: nn.Module):
        super().__init__(run)
        self.optimizer = make_optimizer(run, parameter_groups(module, run))
        self.counted: StepCounts | None = None

    def attach(self, state: DeepSpeedState, groups: Groups, device: torch.device) -> None:
        """Learn where DeepSpeed has put the parameters. Collective."""
        self.state = state
        if isinstance(self.optimizer, WholeOptimizer):
            team = Team.of(groups, device, group_timeout_s(self.run.launch.timeout_s))
            self.optimizer.attach(team, state.calls(), state.sync_one if state.holds_plain_gradients else None)
        elif self.row.scalars:
            self.counted = StepCounts(self.optimizer, self.row.scalars)

    def stepped(self) -> list[torch.optim.Optimizer]:
        """Return torch's optimizers that DeepSpeed steps; ZeRO 3 has one more for what it does not offload."""
        found = (self.optimizer, getattr(self.state.engine.optimizer, "backup_optimizer", None))
        return [each for each in found if each is not None]

    def begin(self) -> None:
        """Begin a step."""
        if self.counted is not None:
            self.counted.begin()

    @contextlib.contextmanager
    def estimating(self, tokens: int) -> Iterator[None]:
        """Have a step taken here change the Hessian and nothing else: gradients are those of drawn labels.

        The loss is the mean over ``tokens`` tokens. What the engine and the loss scaler count is as before, unless
        the step was skipped.
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


class StepCounts:
    """Has every group of ``optimizer`` count one step per step, for any number of calls.

    ZeRO 3 calls ``step`` once for every part of a group, and each time with all groups, most of them
    empty. A library that counts calls would be at step 14 after seven of them. ``keys`` are its counts.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, keys: tuple[str, ...]):
        self.optimizer, self.keys, self._step = optimizer, keys, optimizer.step
        self._before: dict[str, dict[str, Any]] = {}
        optimizer.step = self.step  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """Remember what groups have counted when a step begins."""
        self._before = {
            group["label"]: {key: group[key] for key in self.keys if key in group}
            for group in self.optimizer.param_groups
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Step the groups that have parameters now, as the one step that has begun."""
        everything = self.optimizer.param_groups
        there = [group for group in everything if group["params"]]
        for group in there:
            for key in self.keys:
                group.pop(key, None)
            group.update(self._before[group["label"]])
        self.optimizer.param_groups = there
        try:
            self._step()
        finally:
            self.optimizer.param_groups = everything
