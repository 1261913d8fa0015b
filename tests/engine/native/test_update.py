"""The factor on the gradients, the norm, and the update that decides on the device whether it happens."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.engine.native.update import Updater, read_later
from tests.engine.native.test_units import made


def _updater(fused: bool, grid: dict[str, int] | None = None, rank: int = 0, **changes: str) -> Any:
    grid = grid or {}
    _, units = made(rank, grid, **changes)
    weights = [run.weight for unit in units for run in unit.runs]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=fused, foreach=False)
    return Updater(units, optimizer, Groups(Grid(**grid), rank), torch.device("cpu"))


def _fill(units: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for unit in units:
        for place in unit.places:
            _, here = unit.piece(place)
            unit.reduced[here] = torch.randn(here.stop - here.start, generator=generator)


def _weights(updater: Any) -> list[torch.Tensor]:
    return [unit.masters.clone() for unit in updater.units]


def _expected(limit: float, divisor: float) -> tuple[float, list[torch.Tensor]]:
    updater = _updater(False)
    _fill(updater.units)
    weights = updater.optimizer.param_groups[0]["params"]
    for weight in weights:
        weight.grad = weight.grad / divisor
    norm = float(torch.nn.utils.clip_grad_norm_(weights, limit or 1e9))
    updater.optimizer.step()
    return norm, _weights(updater)


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("divisor", [1.0, 8.0])
@pytest.mark.parametrize("way", ["plain", "fused", "device"])
def test_clips_divides_and_steps(limit, divisor, way):
    norm, expected = _expected(limit, divisor)
    updater = _updater(way != "plain")
    _fill(updater.units)
    updater.waits = way != "device"
    square = updater.squares()
    assert math.sqrt(float(square)) / divisor == pytest.approx(norm, rel=1e-5)
    updater.step(square.sqrt(), divisor, limit)
    for mine, theirs in zip(_weights(updater), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_on_the_device_a_norm_that_is_not_finite_changes_nothing(value):
    updater = _updater(True)
    _fill(updater.units)
    updater.waits = False
    before = _weights(updater)
    updater.units[0].reduced[0] = value
    norm = updater.squares().sqrt()
    assert not math.isfinite(norm)
    updater.step(norm, 1.0, 0.5)
    assert all(torch.equal(mine, old) for mine, old in zip(_weights(updater), before, strict=True))
    states = updater.optimizer.state.values()
    assert all(float(state["step"]) == 0 and not state["exp_avg"].any() for state in states)
    assert not hasattr(updater.optimizer, "found_inf")


@pytest.mark.parametrize("stage", ["0", "1", "3"])
def test_ranks_together_count_every_gradient_once(stage):
    changes = {"parallel.zero_stage": stage}
    total = sum(float(_squares_of_ones({"data": 2, "tensor": 2}, rank, changes)) for rank in range(4))
    whole = sum(place.count for unit in made(0, {})[1] for place in unit.places)
    assert total == pytest.approx(whole, rel=1e-6)


def _squares_of_ones(grid: dict[str, int], rank: int, changes: dict[str, str]) -> torch.Tensor:
    where = Grid(**grid).coordinate(rank)["tensor"]
    group: Any = SimpleNamespace(size=lambda: 2, rank=lambda: where)
    _, units = made(rank, grid, group, **changes)
    for unit in units:
        for place in unit.places:
            unit.reduced[unit.piece(place)[1]] = 1.0
    weights = [run.weight for unit in units for run in unit.runs]
    return Updater(units, torch.optim.SGD(weights, lr=1.0), Groups(Grid(**grid), rank), torch.device("cpu")).squares()


def test_weights_in_half_precision_follow_the_masters():
    updater = _updater(True, **{"train.dtype": "bf16"})
    for unit in updater.units:
        unit.masters.uniform_()
    updater.cast()
    for unit in updater.units:
        assert torch.equal(unit.weights, unit.masters.bfloat16())


def test_numbers_are_read_at_once_on_a_cpu():
    assert read_later(torch.tensor([1.0, 2.0], dtype=torch.float64))() == [1.0, 2.0]
