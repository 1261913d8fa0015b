"""The state that an optimizer of the table keeps of flat runs of weights: made, read, set and reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megads.config.optimizers import Optimizer

State = dict[str, Any]

INTEGERS = ("step", "k")
"""Of what groups count."""


class FlatStates:
    """The state of ``optimizer`` besides that of whole parameters.

    Args:
        optimizer: of torch's class.
        row: of the table.
        flats: returns what it steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, row: Optimizer, flats: Callable[[], Sequence[Tensor]]):
        self.optimizer, self.row, self.flats = optimizer, row, flats

    def of(self, flat: Tensor) -> State:
        """Return the state of one flat; empty before its first step."""
        state: State = self.optimizer.state[flat]
        return state

    def materialise(self) -> None:
        """Make the state that does not exist before the first step."""
        if self.row.is_whole:
            return
        for flat in self.flats():
            state = self.of(flat)
            if not state:
                state.update(self._first(flat))

    def pairs(self, kind: str) -> list[tuple[Tensor, Tensor]]:
        """Return each flat and its state of one kind; empty before the first step."""
        if not any(self.of(flat) for flat in self.flats()):
            return []
        self.materialise()
        return [(flat, self.of(flat)[kind]) for flat in self.flats()]

    def steps(self) -> float:
        """Return the steps that tensors have counted; 0 where they do not count."""
        return max((float(state["step"]) for state in map(self.of, self.flats()) if "step" in state), default=0.0)

    def group_counts(self) -> dict[str, float]:
        """Return what the groups count; they step together, so the first has what all have."""
        group = self.optimizer.param_groups[0]
        return {f"group.{key}": float(group[key]) for key in self.row.scalars if key in group}

    def load(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`steps` (as ``optimizer_step``) and :meth:`group_counts` returned."""
        self.materialise()
        for flat in self.flats():
            state, steps = self.of(flat), values["optimizer_step"]
            if "step" in state:
                is_tensor = isinstance(state["step"], Tensor)
                state["step"] = torch.full_like(state["step"], steps) if is_tensor else int(steps)
        for group in self.optimizer.param_groups:
            for key in self.row.scalars:
                if f"group.{key}" not in values:
                    self._forget(group, key)
                else:
                    value = values[f"group.{key}"]
                    group[key] = int(value) if key in INTEGERS else value

    def reset(self) -> None:
        """Set the state to what it is before the first step, in place."""
        for flat in self.flats():
            for key, value in self._first(flat).items() if self.of(flat) else ():
                kept = self.of(flat)[key]
                self.of(flat)[key] = kept.copy_(value) if isinstance(kept, Tensor) else value
        for group in self.optimizer.param_groups:
            for key in self.row.scalars:
                self._forget(group, key)

    def _forget(self, group: dict[str, Any], key: str) -> None:
        """Reset a count of a group."""
        first = self.optimizer.defaults
        group.pop(key, None)
        if key in first:
            group[key] = first[key]

    def _first(self, flat: Tensor) -> State:
        """Return what the library's class would make at its first step."""
        state: State = {}
        for kind, first in self.row.state.items():
            made = torch.zeros_like(flat, dtype=torch.float32)
            state[kind] = made.copy_(flat.detach()) if first == "weight" else made
        if self.row.step:
            state["step"] = 0 if self.row.step == "int" else torch.zeros((), dtype=torch.float32, device=flat.device)
        return state
