"""The state of a DeepSpeed engine, parameter by parameter.

DeepSpeed keeps masters and moments in flat partitions that depend on the ZeRO stage and on
the ranks. Here they are found by parameter: a run of it on every rank (:class:`OwnedShard`), or all
of it, in the shape that it has on its tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.checkpoint.owned_shard import OwnedShard
from megads.comm.groups import Groups
from megads.config.optimizers import Optimizer
from megads.engine.base import ParameterState, is_copy, whole_shape
from megads.engine.deepspeed.zero import changes_before_gathers, forget_second_partitions
from megads.engine.loss_scale import counts_of, set_counts_of
from megads.engine.optim.exchange import Slot
from megads.engine.optim.flat_states import FlatStates
from megads.engine.optim.whole_parameters import Call, WholeOptimizer
from megads.engine.shares import join_shares, layout_of, share_of
from megads.engine.tied_embedding import TiedEmbedding


class DeepSpeedState:
    """An :class:`megads.engine.base.EngineState` of ``engine``.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        names: parameter -> its name, the same on every rank.
        row: of the optimizer.
        optimizer: what DeepSpeed was given. One that steps whole parameters keeps its state itself.
    """

    def __init__(
        self,
        engine: Any,
        names: Mapping[nn.Parameter, str],
        groups: Groups,
        row: Optimizer,
        optimizer: torch.optim.Optimizer,
        tied: TiedEmbedding | None = None,
    ):
        self.engine, self.names, self.groups, self.row, self.tied = engine, names, groups, row, tied
        self.whole = optimizer if isinstance(optimizer, WholeOptimizer) else None
        self.kinds = ("weight", *row.state)
        self.kept = FlatStates(engine.basic_optimizer, row, self._flats)
        mine = [p for p in engine.module.parameters() if not is_copy(p)]
        self.parameters, self.frozen = ([p for p in mine if p.requires_grad is wanted] for wanted in (True, False))
        self.weights_changed = changes_before_gathers(engine.optimizer)
        self.weights_changed()  # by those who filled them

    @property
    def holds_plain_gradients(self) -> bool:
        """Whether the bare torch optimizer runs (ZeRO 0 in fp32), which keeps no norm."""
        return self.engine.optimizer is self.engine.basic_optimizer

    @property
    def is_partitioned(self) -> bool:
        """Whether a rank holds a partition of every parameter (ZeRO 3)."""
        return hasattr(self.parameters[0], "ds_tensor")

    def by_parameter(self) -> Iterator[ParameterState]:
        """Yield every parameter's float32 weight and moments; collective over data x seq."""
        self._materialise()
        for parameter in self.parameters:
            tensors = {kind: self._read(parameter, kind) for kind in self.kinds}
            shaped = {kind: tensor.detach().view(whole_shape(parameter)) for kind, tensor in tensors.items()}
            yield ParameterState(self.names[parameter], parameter, shaped)

    def owned_shards(self) -> Iterator[OwnedShard]:
        """Yield what this rank owns; see :class:`megads.engine.base.EngineState`."""
        self._materialise()
        for parameter in self.parameters:
            first, tensors = self._run_of(parameter, self.kinds)
            if tensors and tensors["weight"].numel():
                yield OwnedShard(self.names[parameter], layout_of(parameter, self.groups), first, tensors)

    def frozen_shards(self) -> Iterator[OwnedShard]:
        """Yield what this rank reads of frozen parameters; see :class:`megads.engine.base.EngineState`."""
        for parameter in self.frozen:
            if self.is_partitioned:
                first, mine = _own_partition(parameter)
            else:
                share = share_of(parameter.numel(), self.groups)
                first, mine = share.start, parameter.data.view(-1)[share]
            if mine.numel():
                yield OwnedShard(self.names[parameter], layout_of(parameter, self.groups), first, {"weight": mine})

    def _send_frozen(self) -> None:
        """Have what was read of frozen parameters everywhere. Collective."""
        for parameter in self.frozen:
            if self.is_partitioned:
                parameter.partition()
            else:
                join_shares(parameter.data, self.groups)

    def sync_from_masters(self) -> None:
        """Update what follows from the owned shards; see :class:`megads.engine.base.EngineState`."""
        self._send_frozen()
        if self.holds_plain_gradients:
            for parameter in self.parameters:
                for kind in self.kinds:
                    join_shares(self._read(parameter, kind), self.groups)
        elif self.is_partitioned:
            for parameter in self.parameters:
                # A gathered copy would outlive the change.
                parameter.partition()
                parameter.ds_tensor.copy_(self._partition(parameter, "weight"))
            forget_second_partitions(self.engine.module)
            self.weights_changed()
        else:
            self.engine.optimizer.update_lp_params()
        if self.tied is not None:
            self.tied.share()

    def replicated(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what every rank of data x seq holds; see :class:`megads.engine.base.EngineState`."""
        for parameter in self.parameters if self.holds_plain_gradients else ():
            state = self.engine.basic_optimizer.state[parameter]
            for kind in self.row.state if state and not self.row.is_whole else ():
                yield f"{kind} of {self.names[parameter]}", state[kind]

    def whole_states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the state of the parameters that this rank steps as a whole."""
        if self.whole is not None:
            yield from self.whole.states()

    def load_whole_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of the parameters that this rank steps as a whole."""
        if self.whole is not None:
            self.whole.load_states(state_of)

    def _run_of(self, parameter: Any, kinds: Sequence[str]) -> tuple[int, dict[str, Tensor]]:
        """Return the run of a flattened parameter that this rank owns: its first element, and views by kind."""
        if self.holds_plain_gradients:
            share = share_of(parameter.numel(), self.groups)
            return share.start, {kind: self._read(parameter, kind).view(-1)[share] for kind in kinds}
        if self.is_partitioned:
            first, mine = _own_partition(parameter)
            return first, {kind: self._partition(parameter, kind)[: mine.numel()] for kind in kinds}
        owned = parameter._hp_mapping
        if owned is None:
            return 0, {}
        names = {kind: () if kind == "weight" else (kind,) for kind in kinds}
        return owned.lp_fragment_address.start, {
            kind: owned.get_hp_fragment(*name).detach() for kind, name in names.items()
        }

    def _read(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return a parameter's ``"weight"`` (the float32 master) or moment; collective over data x seq."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self.holds_plain_gradients:
            return parameter.data if kind == "weight" else self.engine.basic_optimizer.state[parameter][kind]
        if self.is_partitioned:
            return _join_partitions(parameter, self._partition(parameter, kind))
        if kind == "weight":
            return safe_get_full_fp32_param(parameter)
        return safe_get_full_optimizer_state(parameter, kind)

    def _partition(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return this rank's float32 partition of a parameter's weight or moment."""
        optimizer = self.engine.optimizer
        index, offset, count = optimizer.grad_position[optimizer.get_param_id(parameter)]
        flat = optimizer.fp32_partitioned_groups_flat[index]
        return (flat if kind == "weight" else self.kept.of(flat)[kind]).detach().narrow(0, offset, count)

    def scalars(self) -> dict[str, float]:
        """Return the optimizer's step count, what its groups count, and for fp16 the loss scaler's counters."""
        values = {"optimizer_step": self.steps(), "skipped_steps": float(self.engine.skipped_steps)}
        values |= self.kept.group_counts()
        return values | {f"scaler.{key}": value for key, value in self.scaler_counts().items()}

    def steps(self) -> float:
        """Return the steps that tensors have counted; 0 where they do not count."""
        return self.kept.steps()

    @property
    def scaler(self) -> Any:
        """The loss scaler; None where the optimizer has none."""
        return getattr(self.engine.optimizer, "loss_scaler", None)

    def scaler_counts(self) -> dict[str, float]:
        """Return what a dynamic loss scaler counts; nothing where there is none."""
        return counts_of(self.scaler)

    def set_scaler_counts(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`scaler_counts` returned. One that is not dynamic has the scale that the settings say."""
        set_counts_of(self.scaler, values)

    def flat_states(self, kind: str) -> list[tuple[Tensor, Tensor]]:
        """Return what the optimizer steps, and its state of one kind; empty before the first step."""
        return self.kept.pairs(kind)

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`scalars` returned."""
        self._materialise()
        self.kept.load(values)
        self.engine.skipped_steps = int(values["skipped_steps"])
        self.set_scaler_counts({key.removeprefix("scaler."): value for key, value in values.items()})

    def _flats(self) -> list[Tensor]:
        """Return the tensors the torch optimizer steps: parameters, or ZeRO's flat partitions."""
        if self.is_partitioned:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
        return [flat for group in self.engine.basic_optimizer.param_groups for flat in group["params"]]

    def _materialise(self) -> None:
        """Make the moments that do not exist before the first step.

        ``_lazy_init_hp_params_optimizer_state`` is not public: it links the fragments of
        each parameter to the flat moments. Without it nothing can be set before a step, and
        DeepSpeed itself links after the first group's first step, when the other groups
        have no moments yet; so it is made to link again.
        """
        if self.row.is_whole:
            return
        self.kept.materialise()
        link = getattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self.engine.optimizer._hp_optimizer_states_linked = False
            link()

    def reset_optimizer(self) -> None:
        """Set the state to what it is before the first step, in place."""
        self.load_whole_states(lambda name: {})
        self.kept.reset()

    # Whole parameters

    def calls(self) -> list[Call]:
        """Return the parameters of every call that DeepSpeed makes of the optimizer's ``step``, group by group."""
        optimizer = self.engine.optimizer
        labels = [group["label"] for group in self.engine.basic_optimizer.param_groups]
        found: list[tuple[Tensor, int, Sequence[nn.Parameter]]]
        if self.holds_plain_gradients:
            groups = [group["params"] for group in optimizer.param_groups]
            found = [(params[0], i, params) for i, params in enumerate(groups)]
        elif self.is_partitioned:
            flats, whole = optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups
            found = [(flat, optimizer.sub_group_to_group_id[i], whole[i]) for i, flat in enumerate(flats)]
        else:
            is_bf16 = hasattr(optimizer, "fp32_groups_flat_partition")
            flats = optimizer.fp32_groups_flat_partition if is_bf16 else optimizer.single_partition_of_fp32_groups
            whole = optimizer.bf16_groups if is_bf16 else optimizer.bit16_groups
            found = [(flat, i, whole[i]) for i, flat in enumerate(flats)]
        return [Call(key, labels[i], [self._slot(each, key) for each in members]) for key, i, members in found]

    def _slot(self, parameter: nn.Parameter, flat: Tensor) -> Slot:
        first, tensors = self._run_of(parameter, ("weight",))
        weight = tensors["weight"] if tensors else flat.detach()[:0].view(-1)
        held = parameter if self.holds_plain_gradients else flat
        at = (weight.data_ptr() - held.data_ptr()) // held.element_size() if weight.numel() else 0

        def gradient() -> Tensor:
            if not weight.numel():
                return weight
            assert held.grad is not None
            return held.grad.view(-1)[at : at + weight.numel()]

        return Slot(self.names[parameter], parameter, whole_shape(parameter), first, weight, gradient)

    def sync_one(self, slot: Slot) -> None:
        """Join the shares of a weight that all ranks of data x seq hold. Collective."""
        join_shares(slot.parameter.data, self.groups)


def _own_partition(parameter: Any) -> tuple[int, Tensor]:
    """Return this rank's partition of a parameter, without the padding that the last ranks' end in, and its begin."""
    size = parameter.ds_tensor.numel()
    first = dist.get_rank(parameter.ds_process_group) * size
    return first, parameter.ds_tensor[: max(0, min(size, parameter.ds_numel - first))]


def _join_partitions(parameter: Any, mine: Tensor) -> Tensor:
    """Return the whole of a partitioned parameter from every rank's partition, flat. Collective over data x seq."""
    group = parameter.ds_process_group
    whole = mine.new_empty(mine.numel() * dist.get_world_size(group))
    dist.all_gather_into_tensor(whole, mine.contiguous(), group=group)
    return whole[: parameter.ds_numel]
