"""Every number of a DeepSpeed engine that decides the next step, parameter by parameter.

DeepSpeed keeps masters and moments in flat partitions that depend on the ZeRO stage and on
the ranks. Here they are found by parameter: a run of it on every rank (:class:`Piece`), or all
of it, in the shape that it has on its tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.checkpoint.cut import Cut
from megads.checkpoint.piece import Piece
from megads.dist.groups import Groups
from megads.engine.base import ParameterState, is_copy, whole_shape
from megads.engine.partition import forget_second_partitions

MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = ("weight", *MOMENTS)


class EngineState:
    """Reads and sets the state of ``engine``.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        names: parameter -> its name, the same on every rank.
        groups: the grid's process groups.
    """

    def __init__(self, engine: Any, names: Mapping[nn.Parameter, str], groups: Groups):
        self.engine, self.names, self.groups = engine, names, groups
        self.parameters = [p for p in engine.module.parameters() if p.requires_grad and not is_copy(p)]

    @property
    def holds_plain_gradients(self) -> bool:
        """Whether the bare torch optimizer runs (ZeRO 0 in fp32), which keeps no norm."""
        return self.engine.optimizer is self.engine.basic_optimizer

    @property
    def is_partitioned(self) -> bool:
        """Whether a rank holds a piece of every parameter (ZeRO 3)."""
        return hasattr(self.parameters[0], "ds_tensor")

    def states(self) -> Iterator[ParameterState]:
        """Yield every parameter's float32 weight and moments; collective over data x seq."""
        self._materialise()
        for parameter in self.parameters:
            tensors = {kind: self._read(parameter, kind) for kind in KINDS}
            shaped = {kind: tensor.detach().view(whole_shape(parameter)) for kind, tensor in tensors.items()}
            yield ParameterState(self.names[parameter], parameter, shaped)

    def pieces(self) -> Iterator[Piece]:
        """Yield what this rank answers for; see :class:`megads.engine.base.Engine`."""
        self._materialise()
        for parameter in self.parameters:
            first, tensors = self._run_of(parameter)
            if tensors and tensors["weight"].numel():
                yield Piece(self.names[parameter], self._cut(parameter), first, tensors)

    def spread(self) -> None:
        """Have everything else follow from the pieces; see :class:`megads.engine.base.Engine`."""
        if self.holds_plain_gradients:
            for parameter in self.parameters:
                for kind in KINDS:
                    self._join_shares(self._read(parameter, kind))
        elif self.is_partitioned:
            for parameter in self.parameters:
                # A gathered copy would outlive the change.
                parameter.partition()
                parameter.ds_tensor.copy_(self._piece(parameter, "weight"))
            forget_second_partitions(self.engine.module)
        else:
            self.engine.optimizer.update_lp_params()

    def _run_of(self, parameter: Any) -> tuple[int, dict[str, Tensor]]:
        """Return the run of a flattened parameter that this rank answers for: its first number, and views by kind."""
        if self.holds_plain_gradients:
            share = self._share(parameter.numel())
            return share.start, {kind: self._read(parameter, kind).view(-1)[share] for kind in KINDS}
        if self.is_partitioned:
            size = parameter.ds_tensor.numel()
            first = dist.get_rank(parameter.ds_process_group) * size
            # The last ranks' pieces end in padding.
            count = max(0, min(size, parameter.ds_numel - first))
            return first, {kind: self._piece(parameter, kind)[:count] for kind in KINDS}
        owned = parameter._hp_mapping
        if owned is None:
            return 0, {}
        moments = {kind: owned.get_hp_fragment(kind).detach() for kind in MOMENTS}
        return owned.lp_fragment_address.start, {"weight": owned.get_hp_fragment().detach(), **moments}

    def _cut(self, parameter: nn.Parameter) -> Cut:
        """Return which slice of the whole parameter this tensor-parallel rank holds."""
        shape, shard = tuple(whole_shape(parameter)), getattr(parameter, "shard", None)
        if shard is None:
            return Cut(shape, None, (), self.groups.tensor_rank, self.groups.tensor_size)
        whole = tuple(sum(shard.parts) if dim == shard.dim else size for dim, size in enumerate(shape))
        return Cut(whole, shard.dim, shard.parts, self.groups.tensor_rank, self.groups.tensor_size)

    def _share(self, count: int) -> slice:
        """Return what this rank answers for of ``count`` numbers that every rank of data x seq holds."""
        group = self.groups.data_seq
        size = -(-count // self.groups.data_seq_size)
        first = min(count, size * (dist.get_rank(group) if group is not None else 0))
        return slice(first, min(count, first + size))

    def _join_shares(self, tensor: Tensor) -> None:
        """Set ``tensor`` to what the ranks of data x seq hold in their shares of it. Collective over them."""
        if self.groups.data_seq is None:
            return
        flat = tensor.view(-1)
        mine = flat[self._share(flat.numel())]
        size = -(-flat.numel() // self.groups.data_seq_size)
        everyone = flat.new_empty(size * self.groups.data_seq_size)
        padded = torch.nn.functional.pad(mine, (0, size - mine.numel()))
        dist.all_gather_into_tensor(everyone, padded, group=self.groups.data_seq)
        flat.copy_(everyone[: flat.numel()])

    def _read(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return a parameter's ``"weight"`` (the float32 master) or moment; collective over data x seq."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self.holds_plain_gradients:
            return parameter.data if kind == "weight" else self.engine.basic_optimizer.state[parameter][kind]
        if self.is_partitioned:
            return _join_pieces(parameter, self._piece(parameter, kind))
        if kind == "weight":
            return safe_get_full_fp32_param(parameter)
        return safe_get_full_optimizer_state(parameter, kind)

    def _piece(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return this rank's float32 piece of a partitioned parameter's weight or moment."""
        optimizer = self.engine.optimizer
        index, offset, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
        flat = optimizer.fp32_partitioned_groups_flat[index]
        return (flat if kind == "weight" else self._state(flat)[kind]).detach().narrow(0, offset, count)

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
            # One that is not dynamic has the scale that the settings say, 1 where there is none.
            if getattr(scaler, "dynamic", False) and f"scaler.{key}" in values:
                setattr(scaler, key, kind(values[f"scaler.{key}"]))

    def _flats(self) -> list[Tensor]:
        """Return the tensors the torch optimizer steps: parameters, or ZeRO's flat partitions."""
        if self.is_partitioned:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
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


def _join_pieces(parameter: Any, piece: Tensor) -> Tensor:
    """Return the whole of a partitioned parameter from every rank's piece, flat. Collective over data x seq."""
    group = parameter.ds_process_group
    whole = piece.new_empty(piece.numel() * dist.get_world_size(group))
    dist.all_gather_into_tensor(whole, piece.contiguous(), group=group)
    return whole[: parameter.ds_numel]
