"""What the native engine sends while it computes: the order in which a step's work is issued on the device.

A collective that is issued earlier than what does not need it overlaps with it on hardware. That nothing uses what is
still on its way shows here as well: a race is an error on the simulated device.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import NATIVE, batches, in_halves, rate, settings
from tests.ranks import groups_of
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device

LAYERS = 4
SIZES = {"model.num_layers": str(LAYERS), "train.dtype": "bf16", **NATIVE}
SMALL = {"deepspeed.reduce_bucket_size": "1"}
"""A unit for every layer, also where small layers are joined."""


class _Order:
    """Events of a step, in order, each a word and what it is about: the name of a unit, or a layer's number."""

    def __init__(self, engine: Any):
        self.events: list[tuple[str, Any]] = []
        self.before: list[tuple[str, Any]] = []  # of the step before
        self.present: list[int] = []  # layers whose weights are whole, at each gather
        gatherer, reducer = engine.gatherer, engine.reducer
        self._watch(gatherer, "_begin", "gather", lambda index: gatherer.units[index].name)
        self._watch(reducer, "_reduce", "reduce", lambda each: each.unit.name)
        self._watch(engine.updater, "step", "update", lambda *_: "")
        wait_for = gatherer._wait_for

        def wait(indices: Any) -> None:
            for index in indices:
                if index in gatherer.under_way:
                    self.add("there", gatherer.units[index].name)
            wait_for(indices)

        gatherer._wait_for = wait
        self.gatherer = gatherer
        for number, layer in engine.chunks[0].layers.items():
            layer.register_forward_pre_hook(lambda *_, number=int(number): self.add("forward", number), prepend=True)
            layer.register_forward_hook(lambda *_, number=int(number): self.add("computed", number), prepend=True)
            last = next(reversed(list(layer.parameters())))  # the MLP's, whose gradient comes first
            last.register_hook(lambda grad, number=int(number): self.add("backward", number))
        engine.chunks[0].embedding.weight.register_hook(lambda grad: self.add("backward", "embedding"))

    def add(self, what: str, about: Any) -> None:
        self.events.append((what, about))

    def _watch(self, owner: Any, name: str, what: str, about: Any) -> None:
        real = getattr(owner, name)

        def watched(*args: Any) -> Any:
            self.add(what, about(*args))
            found = real(*args)
            if what == "gather":
                self.present.append(sum(owner.is_layer[index] for index in owner.present))
            return found

        setattr(owner, name, watched)

    def at(self, what: str, about: Any, turn: int = 0) -> int:
        """Return the place of an event; ``turn`` -1: of its last time."""
        return [i for i, event in enumerate(self.events) if event == (what, about)][turn]


def _engine(run: Any, groups: Any) -> Any:
    import torch

    from megads.engine.build import make_engine

    return make_engine(run, groups, torch.device(DEVICE))


def _third_step(zero: int, changes: dict[str, str]) -> tuple[_Order, Any]:
    grid, changes = {"data": 2}, {**SIZES, "parallel.zero_stage": str(zero), **changes}
    run, groups = settings(grid, **in_halves(grid, changes)), groups_of(**grid)
    engine = _engine(run, groups)
    order = _Order(engine)
    for step in range(3):
        order.before, order.events = order.events, []
        engine.train_step(batches(run, step, groups.data_rank), rate(step))
    return order, engine


def _reductions_overlap(zero: int) -> None:
    order, engine = _third_step(zero, SMALL)
    names = [unit.name for unit in engine.units]
    assert names == ["embedding", *(f"layers.{i}" for i in range(LAYERS)), "output"]
    # Of the last micro-batch: a unit is reduced while those before it have no gradient yet.
    reduced = [order.at("reduce", name, -1) for name in names]
    begun = [order.at("backward", what, -1) for what in ("embedding", *range(LAYERS))]
    assert reduced == sorted(reduced, reverse=True)
    for i in range(LAYERS + 1):
        assert reduced[i + 1] < begun[i], order.events
    times = order.events.count(("reduce", "embedding"))
    assert times == (1 if zero < 2 else engine.run.train.grad_acc_steps)
    assert order.at("update", "") > max(reduced)


@pytest.mark.dist
@pytest.mark.parametrize("zero", range(4))
def test_a_unit_is_reduced_before_the_gradients_of_the_one_before_it_exist(zero):
    run_on_device(2, _reductions_overlap, zero)


def _gathers_are_under_way(zero: int) -> None:
    order, engine = _third_step(zero, SMALL)
    names = [unit.name for unit in engine.units]
    # All leave right behind the update; the next step's layer waits for its own weights alone.
    sent = [order.at("gather", name) for name in names]
    assert sent == list(range(sent[0], sent[0] + len(names)))
    assert order.before[-len(names) :] == [("gather", name) for name in names]
    for i in range(LAYERS):
        assert order.at("forward", i) < order.at("there", f"layers.{i}"), order.events
        if i + 1 < LAYERS:
            assert order.at("there", f"layers.{i}") < order.at("forward", i + 1) < order.at("there", f"layers.{i + 1}")
    assert order.events.count(("there", "layers.0")) == 1


@pytest.mark.dist
@pytest.mark.parametrize("zero", [1, 2])
def test_updated_weights_are_under_way_while_the_next_step_begins(zero):
    run_on_device(2, _gathers_are_under_way, zero)


def _layers_come_and_go(recompute: str) -> None:
    order, engine = _third_step(3, {**SMALL, "recompute.granularity": recompute})
    turns = engine.run.train.grad_acc_steps
    # Forward: a layer's gather is issued before the layer before it is computed, backward before the one behind it is.
    for turn in range(turns):
        last = order.at("backward", 0, turn - turns)
        first = order.at("backward", "embedding", turn - 1) if turn else 0
        events = order.events[first:last]
        for i in range(LAYERS):
            gathers = [at for at, event in enumerate(events) if event == ("gather", f"layers.{i}")]
            computed = {n: events.index(("computed", n)) for n in range(LAYERS)}
            assert len(gathers) == (1 if i == LAYERS - 1 or (i == 0 and turn) else 2), order.events
            if i and gathers:
                assert gathers[0] < computed[i - 1], order.events
            if i < LAYERS - 1:
                assert gathers[-1] < events.index(("backward", i + 1)), order.events
    assert max(order.present) == 2
    layers = [unit for unit in engine.units if unit.name.startswith("layers.")]
    assert [unit.weights.untyped_storage().nbytes() for unit in layers] == [0] * LAYERS


@pytest.mark.dist
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_layers_weights_are_under_way_one_layer_ahead(recompute):
    run_on_device(2, _layers_come_and_go, recompute)


def _nothing_is_left(zero: int) -> None:
    import gc

    grid = {"data": 2}
    run, groups = settings(grid, **in_halves(grid, {**SIZES, "parallel.zero_stage": str(zero)})), groups_of(**grid)
    engine = _engine(run, groups)
    found = []
    for step in range(4):
        gc.collect()
        with counting() as counts:
            engine.train_step(batches(run, 0, groups.data_rank), rate(step))
        found.append((counts.allocated, counts.peak))
    assert found[2] == found[3]


@pytest.mark.dist
@pytest.mark.parametrize("zero", range(4))
def test_a_step_leaves_nothing_on_the_device(zero):
    run_on_device(2, _nothing_is_left, zero)
