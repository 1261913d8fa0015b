"""Reductions begin in the backward pass, in one order; what never came is zero, and nothing is reduced twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import NATIVE, batches, make_engine, rate, settings
from tests.ranks import groups_of, run_ranks

DP2 = {"data": 2}


def _engine(**changes: str):
    run, groups = settings(DP2, **{"model.num_layers": "4", **NATIVE, **changes}), groups_of(**DP2)
    return make_engine(run, groups), run, groups


def _reduced_before_the_last_gradient(stage: str) -> None:
    engine, run, groups = _engine(**{"parallel.zero_stage": stage})
    events: list[str] = []
    engine.reducer.issued = lambda unit: events.append(unit.name)
    names = {id(place.parameter): place.name for unit in engine.units for place in unit.places}
    for parameter in engine.module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: events.append(names[id(each)]))
    engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    units = [unit.name for unit in reversed(engine.units)]
    assert len(units) > 4
    begun = [event for event in events if event in units]
    turns = run.train.grad_acc_steps if int(stage) > 1 else 1
    assert begun == units * turns
    # Each but the last begins while gradients are to come, in the last micro-batch, or in each.
    last = max(i for i, event in enumerate(events) if event not in units)
    assert all(max(i for i, event in enumerate(events) if event == name) < last for name in units[:-1])
    first = events.index(units[1])
    arrived = {event for event in events[:first] if event not in units}
    assert ("layers.0.mlp.down.weight" in arrived) == (turns == 1)


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_a_unit_is_reduced_before_the_last_gradient_exists(stage):
    run_ranks(2, _reduced_before_the_last_gradient, stage)


def _missing_gradients_are_zeros(stage: str) -> None:
    import torch

    engine, run, groups = _engine(**{"parallel.zero_stage": stage})
    weights = dict(engine.module.named_parameters())
    unused = weights["layers.1.attention.qkv.weight"]
    for step in range(3):
        unused.requires_grad_(step != 1)
        engine.train_step(batches(run, step, groups.data_rank), rate(step))
        for unit in engine.units:
            for place in unit.places:
                if place.parameter is unused:
                    _, here = unit.piece(place)
                    mine = unit.gradients[here]
                    assert bool((mine == 0).all()) == (step == 1 or not mine.numel())
            assert all(
                bool((part == 0).all())
                for gap in unit.gaps
                for part in [torch.zeros(unit.numel).index_copy_(0, torch.tensor(unit.owned), unit.gradients)[gap]]
            )


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_missing_gradients_are_zeros(stage):
    run_ranks(2, _missing_gradients_are_zeros, stage)


class _Lacking:
    """Weights that get no gradient in some micro-batches of rank 1, or one of zeros."""

    def __init__(self, engine: Any, names: list[str], is_here: bool, is_missing: bool):
        self.is_here, self.micro_batch = is_here, -1
        weights = dict(engine.module.named_parameters())
        self.weights = [weights[name] for name in names]
        engine.module.register_forward_pre_hook(self.begin)
        if is_missing:
            for name in names:
                engine.module.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(self.hide)
            engine.module.register_forward_hook(self.show)
        else:
            for weight in self.weights:
                weight.register_hook(self.zeros)

    @property
    def is_on(self) -> bool:
        return self.is_here and self.micro_batch in (0, 2)

    def begin(self, *args: object) -> None:
        self.micro_batch = (self.micro_batch + 1) % 4

    def hide(self, *args: object) -> None:
        for weight in self.weights:
            weight.requires_grad_(not self.is_on)

    def show(self, *args: object) -> None:
        for weight in self.weights:
            weight.requires_grad_()

    def zeros(self, grad: Any) -> Any:
        return grad * 0 if self.is_on else None


def _a_rank_without_a_gradient_counts_zero(stage: str, names: list[str]) -> None:
    import torch

    found = []
    for is_missing in (True, False):
        engine, run, groups = _engine(
            **{"parallel.zero_stage": stage, "train.grad_acc_steps": "4", "train.micro_batch": "1"}
        )
        _Lacking(engine, names, groups.data_rank == 1, is_missing)
        issued: list[str] = []
        engine.reducer.issued = lambda unit, issued=issued: issued.append(unit.name)
        results = [engine.train_step(batches(run, step, groups.data_rank), rate(step)) for step in range(2)]
        gradients = [unit.gradients.clone() for unit in engine.units]
        found.append((gradients, [(float(each.loss), each.grad_norm) for each in results], issued))
    for mine, wanted in zip(*(each[0] for each in found), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=0)
    assert found[0][1:] == found[1][1:]


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize(
    "names",
    [
        ["layers.2.attention.qkv.weight"],
        ["layers.0.mlp.down.weight", "layers.3.mlp.gate_up.weight", "layers.3.attention.out.weight"],
    ],
    ids=["one", "three"],
)
def test_a_rank_whose_pass_lacks_a_gradient_counts_zero(stage, names):
    """Collectives of the ranks match, and the sums are those of a gradient of zeros."""
    run_ranks(2, _a_rank_without_a_gradient_counts_zero, stage, names)


def _held_units_wait_for_what_is_added(stage: str) -> None:
    import torch

    engine, run, groups = _engine(**{"parallel.zero_stage": stage, "train.grad_acc_steps": "2"})
    unit = engine.units[0]
    engine.reducer.hold(unit)
    events: list[str] = []
    engine.reducer.issued = lambda unit: events.append(unit.name)
    parts = engine.split(batches(run, 0, groups.data_rank))
    found = []
    for added in (0.0, 1.0):
        with engine.surroundings():
            engine.forward_backward(parts, engine.split.token_weight(parts))
        if int(stage) < 2:
            assert unit.name not in events
        weight = unit.places[0].parameter
        engine.reducer.add(weight, torch.full(unit.places[0].shape, added))
        engine.reducer.finish()
        engine.partial.check()
        assert unit.name in events
        events.clear()
        found.append(unit.gradients.clone())
    _, here = unit.piece(unit.places[0])
    torch.testing.assert_close(found[1][here], found[0][here] + 2.0)


@pytest.mark.dist
@pytest.mark.parametrize("stage", ["0", "1", "3"])
def test_held_units_wait_for_what_is_added(stage):
    run_ranks(2, _held_units_wait_for_what_is_added, stage)


def _sent_in(dtype: str, wire: str) -> None:
    import torch
    import torch.distributed as dist

    engine, run, groups = _engine(**{"train.dtype": dtype, "deepspeed.communication_data_type": wire})
    sent: set[torch.dtype] = set()
    send = dist.all_to_all_single

    def note(found: torch.Tensor, given: torch.Tensor, *args: object, **more: object) -> object:
        sent.add(given.dtype)
        return send(found, given, *args, **more)

    dist.all_to_all_single = note
    try:
        engine.train_step(batches(run, 0, groups.data_rank), rate(0))
    finally:
        dist.all_to_all_single = send
    assert sent == {{"fp32": torch.float32, "bf16": torch.bfloat16}[wire]}
    assert all(unit.gradients.dtype == torch.float32 for unit in engine.units)


@pytest.mark.dist
@pytest.mark.parametrize(("dtype", "wire"), [("bf16", "fp32"), ("bf16", "bf16"), ("fp32", "fp32")])
def test_gradients_are_sent_in_the_type_of_the_settings(dtype, wire):
    run_ranks(2, _sent_in, dtype, wire)
