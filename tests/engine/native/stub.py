"""Units, optimizer and state of the native engine without its passes: gradients are a script's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from megads.engine.loss_scale import LossScale
from megads.engine.native.optimizers import NativeDriver
from megads.engine.native.state import NativeState
from megads.engine.native.units import Unit, cut, partition_of
from megads.models.build import build_model
from megads.parallel.tensor import placed, take_shard
from tests.engine.scripted import EXACT, SMALL, gradient, rate
from tests.parity.layouts import Layout
from tests.ranks import groups_of


class Stub:
    """What state and optimizers use of an engine, on this rank of ``layout``."""

    def __init__(self, layout: Layout, **changes: str):
        self.run = layout.run(**{**SMALL, **EXACT, **changes})
        self.groups, self.device = groups_of(**layout.degrees), torch.device("cpu")
        self.units: list[Unit] = []
        self.frozen: list[Unit] = []
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.run.train.dtype]
        with placed(self.device, dtype, hollow=True):
            self.module = build_model(
                self.run,
                self.groups,
                find_partition=partition_of,
                arrange=lambda module: self.units.extend(cut(module, self.run, self.groups)),
            )
        for unit in self.units:
            unit.take_masters()
        self.driver = NativeDriver(self.run, self.units)
        self.optimizer, self.clip_grad = self.driver.optimizer, self.run.optim.clip_grad
        self.scaler, self.skipped_steps = LossScale.of(self.run), 0
        self.state = NativeState(self, self.driver.row)
        self.driver.attach(self)
        self.done = 0

    def weights_changed(self) -> None:
        """Send what every rank owns to all."""
        for unit in self.units:
            unit.part.copy_(unit.masters)
            if unit.weights.untyped_storage().nbytes() and len(unit.owned) < unit.numel:
                dist.all_gather_into_tensor(unit.weights, unit.part.clone(), group=self.groups.data_seq)

    @property
    def gatherer(self) -> Stub:
        """What sends weights."""
        return self

    def finish(self) -> None:
        """Wait for gathers: there are none under way."""

    def send_frozen(self) -> None:
        """Send frozen weights: there are none."""

    def train(self, steps: int) -> None:
        """Go on until ``steps`` are done."""
        for step in range(self.done, steps):
            for unit in self.units:
                unit.gradients.zero_()
                for place in unit.places:
                    shard = getattr(place.parameter, "shard", None)
                    shape = list(place.shape)
                    if shard is not None:
                        shape[shard.dim] = sum(shard.parts)
                    whole = gradient(place.name, shape, step)
                    mine = take_shard(whole, shard, self.groups.tensor_rank, self.groups.tensor_size)
                    first, here = unit.piece(place)
                    unit.gradients[here] = mine.reshape(-1)[first : first + here.stop - here.start]
            for group in self.optimizer.param_groups:
                group["lr"] = rate(step)
            self.optimizer.step()
            self.weights_changed()
        self.done = steps

    def saved(self) -> dict[str, dict[str, Any]]:
        """Return every parameter's tensors by name. Collective."""
        return {
            state.name: {kind: tensor.clone() for kind, tensor in state.tensors.items()}
            for state in self.state.by_parameter()
        }
