"""Units: every element of every parameter is owned by exactly one rank, and parameters are views of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.engine.native.units import ALIGNED, cut, joined, partition_of
from megads.engine.optim.build import MATRICES, OTHERS, VECTORS
from megads.models.build import build_model
from megads.parallel.tensor import placed
from tests.engine.plain import settings


def made(rank: int, grid: dict[str, int], tensor: Any = None, **changes: str):
    """Return model and units of one rank of ``grid``, with initial weights; nothing is sent for that."""
    run, groups = settings(grid, **changes), Groups(Grid(**grid), rank, tensor=tensor)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[run.train.dtype]
    units: list = []
    with placed(torch.device("cpu"), dtype, hollow=True):
        module = build_model(
            run,
            groups,
            find_partition=partition_of,
            arrange=lambda module: units.extend(cut(module, run, groups)),
        )
    for unit in units:
        unit.take_masters()
    return module, units


def initial(**changes: str):
    return dict(build_model(settings({}, **changes), Groups(Grid(), 0)).named_parameters())


KINDS = [
    {},
    {"model.family": "gpt", "model.tied_embeddings": "true"},
    {"optim.optimizer": "muon"},
]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_ranks_own_every_element_once(stage, kind):
    grid = {"data": 2, "seq": 2}
    changes = {**KINDS[kind], "parallel.zero_stage": str(stage), "train.grad_acc_steps": "2"}
    whole = initial(**KINDS[kind])
    held = {name: torch.full((weight.numel(),), torch.nan) for name, weight in whole.items()}
    counts = dict.fromkeys(whole, 0)
    for rank in range(4):
        _, units = made(rank, grid, **changes)
        for unit in units:
            assert unit.numel % (4 * ALIGNED) == 0
            for place in unit.places:
                first, here = unit.piece(place)
                part = unit.masters[here]
                held[place.name][first : first + part.numel()] = part
                counts[place.name] += part.numel()
    for name, weight in whole.items():
        assert torch.equal(held[name].view(weight.shape), weight), name
        assert counts[name] == weight.numel() * (4 if stage == 0 else 1)


def test_parameters_are_views_and_a_float32_model_has_one_copy():
    module, units = made(1, {"data": 2}, **{"parallel.zero_stage": "1"})
    for unit in units:
        assert unit.masters.data_ptr() == unit.weights[unit.owned.start :].data_ptr()
        unit.weights.add_(1.0)
    for name, weight in initial().items():
        assert torch.equal(dict(module.named_parameters())[name], weight + 1)


def test_masters_of_half_precision_are_apart_and_have_the_rounded_weights():
    _, units = made(0, {"data": 2}, **{"train.dtype": "bf16", "parallel.zero_stage": "1"})
    for unit in units:
        assert unit.weights.dtype == torch.bfloat16
        assert unit.masters.dtype == torch.float32
        assert torch.equal(unit.masters, unit.weights[unit.owned.start : unit.owned.stop].float())


def test_zero_3_holds_a_part_and_parameters_without_memory():
    module, units = made(1, {"data": 2}, **{"parallel.zero_stage": "3"})
    assert [unit.name for unit in units] == ["embedding", "layers.0", "layers.1", "output"]
    for unit in units:
        assert unit.weights.untyped_storage().nbytes() == 0
        assert unit.sums is None
        assert len(unit.part) * 2 == unit.numel
    assert all(parameter.shape == initial()[name].shape for name, parameter in module.named_parameters())


def test_runs_cover_the_places_of_their_label():
    _, units = made(0, {}, **{"optim.optimizer": "muon"})
    assert {run.label for unit in units for run in unit.runs} == {MATRICES, OTHERS, VECTORS}
    for unit in units:
        for run in unit.runs:
            mine = [place for place in unit.places if place.label == run.label]
            assert run.first == mine[0].first
            assert run.first + run.weight.numel() == mine[-1].last
            assert run.weight.data_ptr() == unit.masters[run.first :].data_ptr()
            assert run.weight.grad.data_ptr() == unit.gradients[run.first :].data_ptr()


def test_gaps_are_what_no_place_covers():
    _, units = made(0, {})
    for unit in units:
        covered = torch.zeros(unit.numel)
        for place in unit.places:
            assert place.first % ALIGNED == 0
            covered[place.first : place.last] += 1
        for gap in unit.gaps:
            covered[gap] += 1
        assert bool((covered == 1).all())


@pytest.mark.parametrize(
    ("sizes", "bucket", "expected"),
    [
        ([5], 100, [[0]]),
        ([10, 10, 10, 10, 10], 100, [[0], [1], [2], [3], [4]]),
        ([10] * 8, 100, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([10] * 8, 15, [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ([100, 1, 1, 1, 1, 100], 50, [[0], [1, 2, 3, 4], [5]]),
    ],
)
def test_small_neighbours_are_joined_but_not_all_of_them(sizes, bucket, expected):
    assert joined(sizes, bucket) == expected


def group(rank: int) -> Any:
    """Return what stands for a group of two tensor-parallel ranks."""
    return SimpleNamespace(size=lambda: 2, rank=lambda: rank)


def test_tensor_ranks_count_what_is_whole_once():
    names = [
        {place.name for unit in made(rank, {"tensor": 2}, group(rank))[1] for place in unit.places if place.counts}
        for rank in range(2)
    ]
    whole = {name for name in initial() if name.endswith("norm.weight")}
    assert names[0] - names[1] == whole
    assert names[1] <= names[0]
