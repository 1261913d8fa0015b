"""Skip a step whose gradients exist already, and have DeepSpeed's loss scale follow our rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

from megads.engine.loss_scale import next_scale


class StepRejection:
    """Has one of DeepSpeed's ZeRO optimizers skip a step as it skips one that overflowed.

    Gradients are dropped and nothing else changes, not even the loss scale. The optimizers of ZeRO
    1 to 3, in all versions we support, ask for the next loss scale when they know whether the
    gradients are finite and before they look at the answer themselves; there they get it. The
    one for bf16 and ZeRO 1 has no scale, and its step only drops what it has.

    Args:
        optimizer: what ``deepspeed.initialize`` made; the bare torch optimizer is left as it is.

    Attributes:
        norm: of the gradient of the last step that was skipped; infinite where it is not finite.
    """

    def __init__(self, optimizer: Any):
        self.optimizer, self.is_on, self.norm = optimizer, False, math.nan
        self._scaled: Any = None
        self._find: Callable[[], Any] = lambda: math.nan
        # ZeRO 1 and 2, and ZeRO 3: some versions call it before they ask for the next scale, others after.
        for name in ("scaled_global_norm", "_get_norm_groups"):
            if hasattr(optimizer, name):
                self._find = getattr(optimizer, name)
                setattr(optimizer, name, self._found)
                break
        if hasattr(optimizer, "_update_scale"):
            self._update, optimizer._update_scale = optimizer._update_scale, self._update_scale
        elif hasattr(optimizer, "clear_hp_grads"):
            self._step, optimizer.step = optimizer.step, self._step_without_scale

    def __enter__(self) -> None:
        self.is_on, self._scaled = True, None

    def __exit__(self, *error: object) -> None:
        self.is_on = False
        # An optimizer that does not look for overflows itself would skip the next step too.
        self.optimizer.overflow = False

    def _found(self, *args: Any, **kwargs: Any) -> Any:
        self._scaled = self._find(*args, **kwargs)
        return self._scaled

    def _update_scale(self, has_overflow: bool = False) -> None:
        if self.is_on:
            norms = math.inf if has_overflow else self._found() if self._scaled is None else self._scaled
            self.norm = _norm_of(norms, float(self.optimizer.loss_scale))
            self.optimizer.overflow = True
        else:
            self._update(has_overflow)

    def _step_without_scale(self, closure: Any = None) -> None:
        if self.is_on:
            from deepspeed.runtime.utils import get_global_norm_of_tensors

            grads, _ = self.optimizer.get_grads_for_norm()
            norm = get_global_norm_of_tensors(grads, mpu=self.optimizer.mpu, norm_type=self.optimizer.norm_type)
            self.norm = _norm_of(norm, 1.0)
            self.optimizer.overflow = True
            self.optimizer._global_grad_norm = self.norm
            self.optimizer.clear_hp_grads()
            self.optimizer.clear_lp_grads()
        else:
            self._step(closure)


def _norm_of(norms: Any, scale: float) -> float:
    """Return the norm of gradients whose groups have ``norms`` (or all one), times ``scale``; -1 is not finite."""
    found = [float(norm) for norm in (norms if isinstance(norms, list | tuple) else [norms])]
    return math.hypot(*found) / scale if all(0 <= norm < math.inf for norm in found) else math.inf


def scale_by_rules(optimizer: Any) -> None:
    """Have the dynamic loss scale of ``optimizer`` follow Megatron-LM's rules; another scale stays as it is.

    They are those of :func:`megads.engine.loss_scale.next_scale`. DeepSpeed's own differ from version to version:
    in 0.19 the first doubling after the start and after each bad step comes one step later; in all a bad step at
    the minimum ends the run.
    """
    scaler = getattr(optimizer, "loss_scaler", None)
    if scaler is not None and getattr(scaler, "dynamic", False):
        scaler.update_scale = MethodType(next_scale, scaler)
