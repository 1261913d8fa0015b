"""State that is made before the first step is that of the library's first step; a reset makes it new, in place."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from megads.config.optimizers import OPTIMIZERS
from megads.engine.optim.flat_states import FlatStates
from tests.parity.layouts import Layout

NAMES = [
    name
    for name, row in OPTIMIZERS.items()
    if not row.is_whole
    and "cpu" in row.devices
    and not row.on_host
    and all(importlib.util.find_spec(need.module) for need in row.needs)
]


def _made(name: str) -> tuple[FlatStates, list[torch.nn.Parameter]]:
    from megads.engine.optim.build import maker

    generator = torch.Generator().manual_seed(3)
    flats = [torch.nn.Parameter(torch.randn(5, generator=generator)) for _ in range(2)]
    optimizer = maker(name, Layout().run(**{"optim.optimizer": name}).optim)([{"params": flats, "weight_decay": 0.1}])
    row = OPTIMIZERS[name]
    if row.is_averaged:
        optimizer.train()  # type: ignore[attr-defined]
    return FlatStates(optimizer, row, lambda: flats), flats


def _step(states: FlatStates, flats: list[torch.nn.Parameter], number: int) -> None:
    for flat in flats:
        flat.grad = torch.linspace(-1, 1, 5) * (number + 1)
    states.optimizer.step()


def _all(states: FlatStates, flats: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    found = [flat.detach().clone() for flat in flats]
    return found + [states.of(flat)[kind].clone() for flat in flats for kind in states.row.state]


@pytest.mark.parametrize("name", NAMES)
def test_a_first_step_from_made_state_is_that_of_the_library(name):
    (plain, flats), (made, others) = _made(name), _made(name)
    made.materialise()
    assert made.steps() == 0
    for number in range(3):
        _step(plain, flats, number)
        _step(made, others, number)
    for ours, theirs in zip(_all(made, others), _all(plain, flats), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    assert (made.steps(), made.group_counts()) == (plain.steps(), plain.group_counts())


@pytest.mark.parametrize("name", NAMES)
def test_counts_and_state_move_to_another_optimizer(name):
    (first, flats), (second, others) = _made(name), _made(name)
    _step(first, flats, 0)
    second.load({"optimizer_step": first.steps(), **first.group_counts()})
    with torch.no_grad():
        for ours, theirs in zip(others, flats, strict=True):
            ours.copy_(theirs)
            for kind in first.row.state:
                second.of(ours)[kind].copy_(first.of(theirs)[kind])
    for states, each in ((first, flats), (second, others)):
        _step(states, each, 1)
    assert all(torch.equal(a, b) for a, b in zip(_all(first, flats), _all(second, others), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_is_in_place_and_new(name):
    states, flats = _made(name)
    _step(states, flats, 0)
    held = [states.of(flat)[kind] for flat in flats for kind in states.row.state]
    states.reset()
    assert all(
        now is then for now, then in zip((states.of(f)[k] for f in flats for k in states.row.state), held, strict=True)
    )
    again, others = _made(name)
    with torch.no_grad():
        for ours, theirs in zip(others, flats, strict=True):
            ours.copy_(theirs)
    for each, tensors in ((states, flats), (again, others)):
        _step(each, tensors, 1)
    for ours, theirs in zip(_all(states, flats), _all(again, others), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
