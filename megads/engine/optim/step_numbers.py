"""Two numbers of a step that Megatron-LM logs: zeros among the gradients, and the norm of all weights.

Both are of the whole model, the same in every layout: each element counts on the one rank that
owns it, as in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.settings.log import LogConfig
from megads.engine.optim.exchange import Slot
from megads.engine.optim.whole_parameters import Call
from megads.timing.sections import OPTIMIZER, in_section

AT_ONCE = 2**22  # elements


class CallsState(Protocol):
    """What is used of an engine's state."""

    groups: Groups

    def calls(self) -> list[Call]:
        """Return the parameters of every call of the optimizer's ``step``, and what this rank holds of them."""


class StepNumbers:
    """Looks at what ``optimizers``, of torch's class, step with; ``log`` says which numbers are wanted."""

    def __init__(
        self, state: CallsState, optimizers: Sequence[torch.optim.Optimizer], device: torch.device, log: LogConfig
    ):
        self.groups, self.device, self.log = state.groups, device, log
        self.calls = state.calls() if log.num_zeros or log.params_norm else []
        self.zeros: list[Tensor] = []
        for each in optimizers if log.num_zeros else ():
            each.register_step_pre_hook(self._count)

    @in_section(OPTIMIZER)
    def read(self, *, skipped: bool) -> dict[str, Any]:
        """Return ``num_zeros``, None of a step without an update, and ``params_norm``, if wanted. Collective then."""
        if not (self.log.num_zeros or self.log.params_norm):
            return {}
        # In float64 counts up to 2^53 are exact.
        found = torch.zeros(2, dtype=torch.float64, device=self.device)
        for count in self.zeros:
            found[0] += count.to(self.device)
        if self.log.params_norm:
            for slot in self._counted(self.calls):
                # A norm in float64 makes a copy of what it looks at.
                for part in slot.weight.detach().split(AT_ONCE):
                    found[1] += part.norm(dtype=torch.float64).square().to(self.device)
        if self.groups.world is not None:
            dist.all_reduce(found, group=self.groups.world)
        zeros, square = found.tolist()
        known = {"num_zeros": None if skipped else int(zeros)} if self.log.num_zeros else {}
        return {**known, **({"params_norm": square**0.5} if self.log.params_norm else {})}

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # ZeRO 3 calls once for every sub-group, with that one's gradient only.
        now = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for slot in self._counted([call for call in self.calls if id(call.key) in now]):
            self.zeros.append((slot.gradient() == 0).sum())

    def _counted(self, calls: Sequence[Call]) -> list[Slot]:
        """Return the slots whose elements no other tensor-parallel rank counts."""
        return [slot for call in calls for slot in call.slots if slot.parameter.tensor_model_parallel]  # type: ignore[attr-defined]
