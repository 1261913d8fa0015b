"""Optimizers whose groups count their own steps, where DeepSpeed steps a group in several calls.

ZeRO 3 calls ``step`` once for every part of a group, and each time with all groups, most of them empty. A
library that counts calls would be at step 14 after seven of them.
"""

from __future__ import annotations

from typing import Any

import torch


class Counted:
    """Has every group of ``optimizer`` count one step a step, for any number of calls.

    Args:
        optimizer: of the library; its ``step`` is replaced.
        keys: what its groups count.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, keys: tuple[str, ...]):
        self.optimizer, self.keys, self._step = optimizer, keys, optimizer.step
        self._before: dict[str, dict[str, Any]] = {}
        optimizer.step = self.step  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """Take note of what groups have counted: a step begins."""
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
