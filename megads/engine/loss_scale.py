"""The fp16 loss scale by Megatron-LM's rules, the same in both engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megads.config.schema import RunConfig

COUNTERS = {"cur_scale": float, "cur_iter": int, "last_overflow_iter": int, "cur_hysteresis": int}
"""What a dynamic scale counts; checkpoints name it so, after DeepSpeed's scaler."""


@dataclass
class LossScale:
    """A loss scale; a static one keeps its value.

    Attributes:
        cur_scale: of the next backward pass.
        cur_iter: steps whose gradients were checked.
        last_overflow_iter: of these, the last one with a gradient that was not finite; -1: none.
        cur_hysteresis: bad steps left until the scale halves, and then at each one.
    """

    cur_scale: float
    dynamic: bool = False
    scale_window: int = 1000
    delayed_shift: int = 2
    min_scale: float = 1.0
    scale_factor: float = 2.0
    cur_iter: int = 0
    last_overflow_iter: int = -1
    cur_hysteresis: int = 2

    @staticmethod
    def of(run: RunConfig) -> LossScale | None:
        """Return the scale that a run begins with; None unless fp16."""
        optim = run.optim
        if run.train.dtype != "fp16":
            return None
        if optim.loss_scale:
            return LossScale(optim.loss_scale)
        patience, least = optim.loss_scale_hysteresis, float(optim.min_loss_scale)
        first = 2.0**optim.initial_loss_scale_power
        return LossScale(first, True, optim.loss_scale_window, patience, least, cur_hysteresis=patience)

    def update(self, overflow: bool) -> None:
        """Set the scale of the next step; ``overflow``: a gradient of this one was not finite."""
        if self.dynamic:
            next_scale(self, overflow)

    def counts(self) -> dict[str, float]:
        """Return what a checkpoint keeps; nothing of a static scale, which is that of the settings."""
        return counts_of(self)

    def set_counts(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`counts` returned."""
        set_counts_of(self, values)


def counts_of(scaler: Any) -> dict[str, float]:
    """Return what a dynamic ``scaler`` counts; nothing where there is none."""
    return {key: float(getattr(scaler, key)) for key in COUNTERS} if getattr(scaler, "dynamic", False) else {}


def set_counts_of(scaler: Any, values: Mapping[str, float]) -> None:
    """Set what :func:`counts_of` returned. A scale that is not dynamic is that of the settings."""
    for key, kind in COUNTERS.items():
        if getattr(scaler, "dynamic", False) and key in values:
            setattr(scaler, key, kind(values[key]))


def next_scale(scaler: Any, overflow: bool) -> None:
    """Set the scale of the next step, of a :class:`LossScale` or of DeepSpeed's scaler, whose attributes it has.

    The scale doubles when ``scale_window`` good steps followed the last bad one or the last doubling,
    and patience (``delayed_shift``) is whole again. A bad step takes from patience until one is left,
    from then on the scale halves, but not below its minimum: the run ends by ``MAX_SKIPPED_STEPS``,
    with a message, and a single bad step at the minimum does not end it.
    """
    if overflow:
        if scaler.cur_hysteresis > 1:
            scaler.cur_hysteresis -= 1
        else:
            scaler.cur_scale = max(scaler.cur_scale / scaler.scale_factor, scaler.min_scale)
        scaler.last_overflow_iter = scaler.cur_iter
    elif (scaler.cur_iter - scaler.last_overflow_iter) % scaler.scale_window == 0:
        scaler.cur_scale *= scaler.scale_factor
        scaler.cur_hysteresis = scaler.delayed_shift
    scaler.cur_iter += 1
