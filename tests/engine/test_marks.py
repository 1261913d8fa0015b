"""Marks survive devices on which a move makes new parameters, and a lost one ends the set-up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from megads.engine.marks import check_marks, check_same, move
from megads.errors import DeviceError
from megads.models.build import model_class
from megads.models.gpt import GPT
from megads.parallel.tensor import Shard
from tests.engine.deepspeed.test_pipeline import MODELS, ZERO
from tests.engine.plain import trains_like_one_rank
from tests.models import shapes
from tests.models.noisy import ONE
from tests.ranks import run_ranks

KINDS = {
    **shapes.KINDS,
    **shapes.FAMILIES,
    **shapes.BERTS,
    **shapes.T5S,
    "classifier": shapes.LLAMA.model_copy(update={"num_classes": 3}),
    "bert-classifier": shapes.BERT.model_copy(update={"num_classes": 3}),
}
CPU = torch.device("cpu")


def as_new(module: GPT, moves: int = 1) -> None:
    """Have the next ``moves`` of a module make new parameters, as torch does for devices that it does not know well."""
    left = [moves]

    def to(*where: object) -> nn.Module:
        torch.__future__.set_overwrite_module_params_on_conversion(left[0] > 0)
        left[0] -= 1
        try:
            return nn.Module.to(module, *where)
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)

    module.to = to  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_keep_their_marks_when_a_move_makes_new_ones(kind):
    module = model_class(KINDS[kind])(KINDS[kind], ONE)
    check_marks(module)
    as_new(module)
    old = dict(module.named_parameters())
    assert move(module, CPU, torch.float64) is module
    for name, parameter in module.named_parameters():
        assert parameter is not old[name]
        assert parameter.dtype == torch.float64
        assert parameter.shard == old[name].shard


def test_a_lost_and_a_wrong_mark_are_reported():
    module = model_class(shapes.LLAMA)(shapes.LLAMA, ONE)
    as_new(module)
    module.to(CPU)
    with pytest.raises(DeviceError, match=r"embedding.weight on cpu: its mark says nothing, .* Shard\(dim=0"):
        check_marks(module)
    module = model_class(shapes.LLAMA)(shapes.LLAMA, ONE)
    module.layers["1"].mlp.down.weight.shard = Shard(0, (32,))
    with pytest.raises(DeviceError, match=r"layers.1.mlp.down.weight on cpu: its mark says Shard\(dim=0"):
        check_marks(module)
    module.layers["1"].mlp.down.weight.shard = Shard(1, (48,))
    module.final_norm.weight = nn.Parameter(torch.ones(31))
    module.final_norm.weight.shard = None
    with pytest.raises(DeviceError, match=r"final_norm.weight on cpu: of the whole shape \(31,\)"):
        check_marks(module)


def test_a_parameter_that_is_replaced_later_is_reported():
    module = move(model_class(shapes.GPT)(shapes.GPT, ONE), CPU)
    names = {parameter: name for name, parameter in module.named_parameters()}
    for parameter in names:
        parameter.tensor_model_parallel = True
    check_same(names, module)
    other = nn.Parameter(module.positions.weight.detach().clone())
    vars(other).update(vars(module.positions.weight))
    module.positions.weight = other
    with pytest.raises(DeviceError, match=r"positions.weight on cpu was replaced"):
        check_same(names, module)


def _trains_where_a_move_makes_new_ones(grid, changes) -> None:
    import megads.engine.deepspeed.build as build

    built = build.build_model

    def and_as_new(*args, **more):
        module = built(*args, **more)
        as_new(module)
        return module

    build.build_model = and_as_new
    try:
        trains_like_one_rank(grid, changes)
    finally:
        build.build_model = built


@pytest.mark.dist
@pytest.mark.parametrize(
    ("grid", "changes"),
    [({"tensor": 2}, {"parallel.zero_stage": "0"}), ({"pipe": 2}, {**MODELS["gpt"], **ZERO[0]})],
    ids=["tp2", "pp2-tied"],
)
def test_a_run_is_that_of_one_rank_where_a_move_makes_new_parameters(grid, changes):
    run_ranks(2, _trains_where_a_move_makes_new_ones, grid, changes)
