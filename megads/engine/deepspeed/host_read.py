"""The one place of a step where the host waits for the device.

The norm of the gradients decides on the host whether the weights change, so it must be read. DeepSpeed 0.19.8 reads
it twice or three times (is it finite, is it above the limit, what is it), and an overflow before it; each time the
device runs empty. Here it is read once, together with the loss, and DeepSpeed goes on with numbers of the host. The
numbers are the same bits. What is changed is changed on one optimizer, never on DeepSpeed's classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist

MASK = "mask_nan_or_inf_with_val_inplace"


def on_host(numbers: Sequence[Tensor]) -> list[Tensor]:
    """Return numbers, each of one element, as host tensors of no dimensions; those of a device come in one copy."""
    there = [number for number in numbers if number.device.type != "cpu"]
    if not there:
        return [number.detach().reshape(()) for number in numbers]
    wide = there[0].dtype
    for number in there:
        wide = torch.promote_types(wide, number.dtype)
    packed = iter(torch.stack([number.detach().reshape(()).to(wide) for number in there]).cpu())
    return [
        number.detach().reshape(()) if number.device.type == "cpu" else next(packed).to(number.dtype)
        for number in numbers
    ]


class HostRead:
    """Reads the norm that one of DeepSpeed's ZeRO optimizers decides by, with other numbers of the step.

    Make it before anything else wraps the optimizer's methods. The bare torch optimizer is left as it is.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self._others: list[Tensor] = []
        self._bad: Tensor | None = None  # whether a gradient is not finite, as its sum over the ranks
        kind = type(optimizer).__name__
        if kind == "BF16_Optimizer":
            self._replace_in_step()
            return
        if hasattr(optimizer, "get_grad_norm_direct"):
            _replace(optimizer, "get_grad_norm_direct", {MASK: _mask})
        if kind == "DeepSpeedZeroOptimizer":
            self._find = optimizer.scaled_global_norm
            optimizer.scaled_global_norm = self._norm
            if _decides_by_norm() and not optimizer.cpu_offload and getattr(optimizer, "check_grad_overflow", False):
                optimizer.has_overflow = self._look_for_overflow
        elif kind == "DeepSpeedZeroOptimizer_Stage3":
            self._find_groups = optimizer._get_norm_groups
            optimizer._get_norm_groups = self._norms

    def begin(self, numbers: Sequence[Tensor]) -> None:
        """Have ``numbers`` read with the norm of the step that follows."""
        self._others = list(numbers)

    def end(self) -> list[Tensor]:
        """Return the numbers of :meth:`begin` on the host; they are read now where no norm was."""
        found, self._others = on_host(self._others), []
        return found

    def _read(self, norms: Sequence[Any]) -> list[Any]:
        """Return ``norms`` on the host; those that are numbers there already stay."""
        tensors = [norm for norm in norms if isinstance(norm, Tensor)]
        bad = [self._bad] if self._bad is not None else []
        read = on_host([*tensors, *bad, *self._others])
        self._others, self._bad = read[len(tensors) + len(bad) :], None
        if bad and bool(read[len(tensors)]):
            read[: len(tensors)] = [torch.full_like(norm, torch.inf) for norm in read[: len(tensors)]]
        found = iter(read)
        return [next(found) if isinstance(norm, Tensor) else norm for norm in norms]

    def _norm(self, *args: Any, **kwargs: Any) -> Any:
        return self._read([self._find(*args, **kwargs)])[0]

    def _norms(self) -> Any:
        return self._read(self._find_groups())

    def _look_for_overflow(self, partition_gradients: bool = True) -> bool:
        """Return False: what is found goes into the norm, by which DeepSpeed decides in the same step."""
        optimizer = self.optimizer
        bad = torch.zeros(1, device=optimizer.device) + optimizer.has_overflow_partitioned_grads_serial()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=optimizer.dp_process_group)
        optimizer._model_parallel_all_reduce(tensor=bad, op=dist.ReduceOp.MAX)
        self._bad = bad
        return False

    def _replace_in_step(self) -> None:
        from deepspeed.runtime.utils import get_global_norm_of_tensors

        norm_of: Callable[..., Any] = _with(get_global_norm_of_tensors, {MASK: _mask})

        def norm_on_host(*args: Any, **kwargs: Any) -> Any:
            return self._read([norm_of(*args, **kwargs)])[0]

        _replace(self.optimizer, "step", {"get_global_norm_of_tensors": norm_on_host})


def _decides_by_norm() -> bool:
    """Return whether a step is skipped by its norm alone, as since 0.19; before, only by what was looked for."""
    from deepspeed.runtime import utils

    return hasattr(utils, "is_invalid_grad_norm")


def _mask(norm: Tensor, device: Any = None, val: float = -1.0) -> None:
    """Do what DeepSpeed's function of this name does, without the upload of a number."""
    norm.masked_fill_(~norm.isfinite(), val)


def _replace(owner: Any, method: str, names: dict[str, Any]) -> None:
    """Give ``owner`` a method of its own in which ``names`` mean something else."""
    setattr(owner, method, MethodType(torch.no_grad()(_with(getattr(type(owner), method), names)), owner))


def _with(function: Any, names: dict[str, Any]) -> FunctionType:
    """Return ``function`` with other values of some of its module's names."""
    plain = inspect.unwrap(function)
    meaning = {**plain.__globals__, **names}
    made = FunctionType(plain.__code__, meaning, plain.__name__, plain.__defaults__, plain.__closure__)
    made.__kwdefaults__ = plain.__kwdefaults__
    return made
