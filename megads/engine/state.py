"""Every number of a DeepSpeed engine that decides the next step, parameter by parameter.

DeepSpeed keeps masters and moments in flat partitions that depend on the ZeRO stage and on
the ranks. Here they come and go in the shape each parameter has on its tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from megads.engine.base import ParameterState

MOMENTS = ("exp_avg", "exp_avg_sq")


class EngineState:
    """Reads and sets the state of ``engine``.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        names: parameter -> its name, the same on every rank.
    """

    def __init__(self, engine: Any, names: Mapping[nn.Parameter, str]):
        self.engine, self.names = engine, names
        self.parameters = [p for p in engine.module.parameters() if p.requires_grad]

    @property
    def holds_plain_gradients(self) -> bool:
        """Whether the bare torch optimizer runs (ZeRO 0 in fp32), which keeps no norm."""
        return self.engine.optimizer is self.engine.basic_optimizer

    def states(self) -> Iterator[ParameterState]:
        """Yield every parameter's float32 weight and moments; collective over data x seq."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        self._materialise()
        for parameter in self.parameters:
            if self.holds_plain_gradients:
                state = self.engine.basic_optimizer.state[parameter]
                tensors = {"weight": parameter.data, **{key: state[key] for key in MOMENTS}}
            else:
                tensors = {"weight": safe_get_full_fp32_param(parameter)}
                tensors |= {key: safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}
            shaped = {kind: tensor.detach().view(parameter.shape) for kind, tensor in tensors.items()}
            yield ParameterState(self.names[parameter], parameter, shaped)

    def load(self, read: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Set weight and moments of the parameters in ``read``."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        self._materialise()
        for parameter in self.parameters:
            if self.names[parameter] not in read:
                continue
            tensors = {kind: tensor.to(parameter.device) for kind, tensor in read[self.names[parameter]].items()}
            # The working copy first: the master's setter knows nothing of it.
            parameter.data.copy_(tensors["weight"])
            if self.holds_plain_gradients:
                for key in MOMENTS:
                    self.engine.basic_optimizer.state[parameter][key].copy_(tensors[key])
            else:
                safe_set_full_fp32_param(parameter, tensors["weight"])
                for key in MOMENTS:
                    safe_set_full_optimizer_state(parameter, tensors[key], key)

    def scalars(self) -> dict[str, float]:
        """Return the optimizer's step count and, for fp16, the loss scaler's counters."""
        steps = {float(state["step"]) for state in map(self._state, self._flats()) if state}
        values = {"optimizer_step": max(steps, default=0.0), "skipped_steps": float(self.engine.skipped_steps)}
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        if scaler is not None and getattr(scaler, "dynamic", False):
            values |= {f"scaler.{key}": float(getattr(scaler, key)) for key in _SCALER_COUNTERS}
        return values

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Take back what :meth:`scalars` gave."""
        self._materialise()
        for flat in self._flats():
            self._state(flat)["step"].fill_(values["optimizer_step"])
        self.engine.skipped_steps = int(values["skipped_steps"])
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        for key, kind in _SCALER_COUNTERS.items():
            if scaler is not None and f"scaler.{key}" in values:
                setattr(scaler, key, kind(values[f"scaler.{key}"]))

    def _flats(self) -> list[Tensor]:
        """Return the tensors the torch optimizer steps: parameters, or ZeRO's flat partitions."""
        return [flat for group in self.engine.basic_optimizer.param_groups for flat in group["params"]]

    def _state(self, flat: Tensor) -> dict[str, Tensor]:
        return self.engine.basic_optimizer.state[flat]

    def _materialise(self) -> None:
        """Make the moments that do not exist before the first step.

        ``_lazy_init_hp_params_optimizer_state`` is not public: it links the fragments of
        each parameter to the flat moments. Without it nothing can be set before a step, and
        DeepSpeed itself links after the first group's first step, when the other groups
        have no moments yet; so it is made to link again.
        """
        for flat in self._flats():
            state = self._state(flat)
            if not state:
                moments = {key: torch.zeros_like(flat, dtype=torch.float32) for key in MOMENTS}
                state.update(step=torch.zeros((), dtype=torch.float32, device=flat.device), **moments)
        link = getattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self.engine.optimizer._hp_optimizer_states_linked = False
            link()


_SCALER_COUNTERS = {"cur_scale": float, "cur_iter": int, "last_overflow_iter": int, "cur_hysteresis": int}
