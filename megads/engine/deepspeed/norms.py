"""Two numbers of a step that Megatron-LM logs: zeros among the gradients, and the norm of all weights.

Both are of the whole model, the same in every layout: each number counts on the one rank that
answers for it, as in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.engine.optim.exchange import Slot
from megads.engine.optim.whole_parameters import Call
from megads.timing.sections import OPTIMIZER, in_section

AT_ONCE = 2**22  # numbers


class StepNumbers:
    """Looks at what the optimizer of one engine steps with.

    Args:
        optimizers: that DeepSpeed calls, of torch's class.
        calls: the parameters of every call, see ``EngineState.calls``.
        groups: the grid's process groups.
        device: of what the ranks exchange.
        zeros: count the zeros among the gradients that the weights are changed by.
        norm: take the norm of the weights after the step.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        calls: Sequence[Call],
        groups: Groups,
        device: torch.device,
        *,
        zeros: bool,
        norm: bool,
    ):
        self.calls, self.groups, self.device, self.norm = calls, groups, device, norm
        self.zeros: list[Tensor] | None = None
        if zeros:
            self.zeros = []
            for optimizer in optimizers:
                optimizer.register_step_pre_hook(self._count)

    def begin(self) -> None:
        """Take note that a step begins."""
        if self.zeros is not None:
            self.zeros = []

    @in_section(OPTIMIZER)
    def read(self, *, skipped: bool) -> dict[str, Any]:
        """Return ``num_zeros``, None of a step without an update, and ``params_norm``, as far as asked. Collective."""
        # In float64 counts up to 2^53 are exact.
        found = torch.zeros(2, dtype=torch.float64, device=self.device)
        for count in self.zeros or ():
            found[0] += count.to(self.device)
        if self.norm:
            for slot in self._counted(self.calls):
                # A norm in float64 makes a copy of what it looks at.
                for part in slot.weight.detach().split(AT_ONCE):
                    found[1] += part.norm(dtype=torch.float64).square().to(self.device)
        if self.groups.world is not None:
            dist.all_reduce(found, group=self.groups.world)
        zeros, square = found.tolist()
        known = {} if self.zeros is None else {"num_zeros": None if skipped else int(zeros)}
        return {**known, **({"params_norm": square**0.5} if self.norm else {})}

    def _count(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # ZeRO 3 calls once for every sub-group, with that one's gradient only.
        now = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        assert self.zeros is not None
        for slot in self._counted([call for call in self.calls if id(call.key) in now]):
            self.zeros.append((slot.gradient() == 0).sum())

    def _counted(self, calls: Sequence[Call]) -> list[Slot]:
        """Return the slots whose numbers no other tensor-parallel rank counts."""
        return [slot for call in calls for slot in call.slots if slot.parameter.tensor_model_parallel]  # type: ignore[attr-defined]
