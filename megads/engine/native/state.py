"""The state of the native engine, parameter by parameter.

Masters are flat over the parameters of a unit, and moments over each run of a label that a rank owns. Here they are
found by parameter: what a rank owns of it (:class:`OwnedShard`), or all of it, in the shape of its tensor-parallel
rank. The scalars have the names of the DeepSpeed engine's, so a checkpoint of one engine resumes under the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.checkpoint.owned_shard import OwnedShard
from megads.comm.groups import Groups
from megads.config.optimizers import Optimizer
from megads.engine.base import ParameterState
from megads.engine.loss_scale import LossScale
from megads.engine.native.units import Place, Run, Unit
from megads.engine.optim.exchange import Slot
from megads.engine.optim.flat_states import FlatStates
from megads.engine.optim.whole_parameters import Call, WholeOptimizer
from megads.engine.shares import join_shares, layout_of, share_of


class Gathers(Protocol):
    """What is used of a gatherer."""

    def finish(self) -> None:
        """Wait for gathers under way. Not collective."""

    def send_frozen(self) -> None:
        """Send what was read of frozen weights. Collective."""


class Owner(Protocol):
    """What is used of the engine."""

    groups: Groups
    device: torch.device
    units: list[Unit]
    frozen: list[Unit]
    optimizer: torch.optim.Optimizer
    scaler: LossScale | None
    skipped_steps: int

    @property
    def gatherer(self) -> Gathers:
        """What sends weights."""

    def weights_changed(self) -> None:
        """Have the model compute with the masters as they are now, tied copies too. Collective."""


class NativeState:
    """An :class:`megads.engine.base.EngineState` of ``engine``; ``row`` is that of its optimizer."""

    def __init__(self, engine: Owner, row: Optimizer):
        self.engine, self.groups, self.row = engine, engine.groups, row
        self.whole = engine.optimizer if isinstance(engine.optimizer, WholeOptimizer) else None
        self.kinds = ("weight", *row.state)
        self.kept = FlatStates(engine.optimizer, row, self._flats)
        self.places = [(unit, place) for unit in engine.units for place in unit.places]
        self.runs = {(id(unit), run.label): run for unit in engine.units for run in unit.runs}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that this stage owns."""
        return [place.parameter for _, place in self.places]

    def by_parameter(self) -> Iterator[ParameterState]:
        """Yield every parameter's float32 weight and moments; collective over data x seq."""
        self.engine.gatherer.finish()
        self.kept.materialise()
        for unit in self.engine.units:
            whole = {kind: self._whole(unit, kind) for kind in self.kinds}
            for place in unit.places:
                tensors = {kind: place.of(flat) for kind, flat in whole.items()}
                yield ParameterState(place.name, place.parameter, tensors)

    def owned_shards(self) -> Iterator[OwnedShard]:
        """Yield what this rank owns; see :class:`megads.engine.base.EngineState`.

        A gather under way would send, and write over, what is being changed.
        """
        self.engine.gatherer.finish()
        self.kept.materialise()
        for unit, place in self.places:
            first, tensors = self._owned(unit, place, self.kinds)
            if tensors["weight"].numel():
                yield OwnedShard(place.name, layout_of(place.parameter, self.groups), first, tensors)

    def frozen_shards(self) -> Iterator[OwnedShard]:
        """Yield what this rank reads of frozen parameters; see :class:`megads.engine.base.EngineState`."""
        self.engine.gatherer.finish()
        for unit in self.engine.frozen:
            for place in unit.places:
                first, here = unit.piece(place)
                if here.stop > here.start:
                    layout = layout_of(place.parameter, self.groups)
                    yield OwnedShard(place.name, layout, first, {"weight": unit.part[here]})

    def sync_from_masters(self) -> None:
        """Update what follows from the owned shards; see :class:`megads.engine.base.EngineState`."""
        self.join()
        self.engine.gatherer.send_frozen()
        self.engine.weights_changed()

    def replicated(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what every rank of data x seq holds; see :class:`megads.engine.base.EngineState`."""
        for unit in filter(self._is_replicated, self.engine.units):
            if unit.masters is not unit.part:
                yield f"masters of {unit.name}", unit.masters
            for run in unit.runs:
                state = self.kept.of(run.weight)
                for kind in self.row.state if state else ():
                    yield f"{kind} of {unit.name} ({run.label})", state[kind]

    def join(self) -> None:
        """Where every rank holds all of a unit, set it to what each answers for. Collective over data x seq."""
        for unit in self.engine.units:
            for run in unit.runs if self._is_replicated(unit) else ():
                for kind in self.kinds:
                    join_shares(self._flat(run, kind), self.groups)

    def reset_optimizer(self) -> None:
        """Set the state to what it is before the first step, in place."""
        self.load_whole_states(lambda name: {})
        self.kept.reset()

    # Whole parameters

    def whole_states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the state of the parameters that this rank steps as a whole."""
        if self.whole is not None:
            yield from self.whole.states()

    def load_whole_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of the parameters that this rank steps as a whole."""
        if self.whole is not None:
            self.whole.load_states(state_of)

    def calls(self) -> list[Call]:
        """Return the parameters of every group of the optimizer, in the same order on every rank of the stage."""
        found = []
        for group in self.engine.optimizer.param_groups:
            slots = [self._slot(unit, place) for unit, place in self.places if place.label == group["label"]]
            found.append(Call(group["params"][0], group["label"], slots))
        return found

    # Counts

    def scalars(self) -> dict[str, float]:
        """Return the optimizer's step count, what its groups count, and for fp16 the loss scaler's counters."""
        values = {"optimizer_step": self.steps(), "skipped_steps": float(self.engine.skipped_steps)}
        scaler = self.engine.scaler.counts() if self.engine.scaler is not None else {}
        return values | self.kept.group_counts() | {f"scaler.{key}": value for key, value in scaler.items()}

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Set what :meth:`scalars` returned, of this engine or of another."""
        self.kept.load(values)
        self.engine.skipped_steps = int(values["skipped_steps"])
        if self.engine.scaler is not None:
            self.engine.scaler.set_counts({key.removeprefix("scaler."): value for key, value in values.items()})

    def steps(self) -> float:
        """Return the steps that tensors have counted; 0 where they do not count."""
        return self.kept.steps()

    def flat_states(self, kind: str) -> list[tuple[Tensor, Tensor]]:
        """Return what the optimizer steps, and its state of one kind; empty before the first step."""
        self.engine.gatherer.finish()
        return self.kept.pairs(kind)

    # Where things are

    def _flats(self) -> Sequence[Tensor]:
        return [flat for group in self.engine.optimizer.param_groups for flat in group["params"]]

    def _flat(self, run: Run, kind: str) -> Tensor:
        """Return a run's masters, or its moment of ``kind``."""
        flat: Tensor = run.weight if kind == "weight" else self.kept.of(run.weight)[kind]
        return flat.detach()

    def _is_replicated(self, unit: Unit) -> bool:
        return len(unit.owned) == unit.numel and self.groups.data_seq_size > 1

    def _owned(self, unit: Unit, place: Place, kinds: Sequence[str]) -> tuple[int, dict[str, Tensor]]:
        """Return what this rank answers for of a parameter: its first element there, and views by kind."""
        first, here = unit.piece(place)
        run = self.runs[id(unit), place.label]
        start = here.start - (run.first - unit.owned.start)
        stop = start + here.stop - here.start
        if self._is_replicated(unit):
            share = share_of(run.weight.numel(), self.groups)
            left, right = max(start, share.start), min(stop, share.stop)
            first, start, stop = first + left - start, left, max(left, right)
        if stop <= start:
            first = start = stop = 0
        return first, {kind: self._flat(run, kind)[start:stop] for kind in kinds}

    def _whole(self, unit: Unit, kind: str) -> Tensor:
        """Return a unit's masters or moments of all ranks, ``[numel]`` float32 on the device. Collective."""
        mine = unit.masters
        if kind != "weight":
            mine = torch.zeros_like(unit.masters)
            for run in unit.runs:
                at = run.first - unit.owned.start
                mine[at : at + run.weight.numel()] = self._flat(run, kind)
        mine = mine.detach().to(self.engine.device)
        if len(unit.owned) == unit.numel:
            return mine
        whole = mine.new_empty(unit.numel)
        dist.all_gather_into_tensor(whole, mine, group=self.groups.process_group("data_seq"))
        return whole

    def _slot(self, unit: Unit, place: Place) -> Slot:
        first, tensors = self._owned(unit, place, ("weight",))
        weight = tensors["weight"]
        # Gradients lie as masters do.
        at = (weight.data_ptr() - unit.masters.data_ptr()) // weight.element_size() if weight.numel() else 0

        def gradient() -> Tensor:
            return unit.gradients[at : at + weight.numel()]

        return Slot(place.name, place.parameter, place.shape, first, weight, gradient)
