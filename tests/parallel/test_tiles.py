"""A layer in tiles of tokens: output and gradients of the whole, what is kept, and when."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from megads.families.decoder import spec_of
from megads.families.spec import by_name
from megads.models.layers import Context, make_mlp
from megads.parallel.recompute import Recompute
from megads.parallel.tiles import in_tiles
from megads.parallel.weight_gradients import LaterGradients
from tests.engine.plain import settings
from tests.pairs import parametrize_pairs
from tests.ranks import groups_of, run_ranks


class Layer(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(6, 10).to(dtype), nn.Linear(10, 6).to(dtype)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def _gradients(layer, x, tiles):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = in_tiles(layer, x, tiles, layer.parameters())
    (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return y.detach(), x.grad, [parameter.grad.clone() for parameter in layer.parameters()]


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize("rows", [1, 3])
def test_tiles_give_what_the_whole_gives(tiles, rows):
    layer, x = Layer(), torch.randn(rows, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(_gradients(layer, x, tiles), _gradients(layer, x, 1), rtol=1e-12, atol=1e-12)


def test_a_tile_is_seen_once_forward_and_once_again_and_gradients_arrive_once():
    layer, seen, arrived = Layer(), [], []
    layer.up.register_forward_hook(lambda module, given, out: seen.append((given[0].shape[1], out.requires_grad)))
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(arrived.append)
    _gradients(layer, torch.randn(2, 7, 6, dtype=torch.float64), 3)
    assert seen == [(3, False), (3, False), (1, False), (3, True), (3, True), (1, True)]
    assert len(arrived) == len({id(each) for each in arrived}) == 4


def test_only_the_input_is_kept():
    layer, kept = Layer(), []
    x = torch.randn(2, 8, 6, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        in_tiles(layer, x, 4, layer.parameters())
    assert [each.data_ptr() for each in kept] == [x.data_ptr()]


def test_frozen_weights_and_inputs_get_no_gradient():
    layer = Layer()
    layer.up.weight.requires_grad_(False)
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    in_tiles(layer, x, 2, layer.parameters()).sum().backward()
    assert layer.up.weight.grad is None
    assert layer.down.weight.grad is not None
    with torch.no_grad():
        assert not in_tiles(layer, x, 2, layer.parameters()).requires_grad


def test_weight_gradients_of_many_tiles_are_summed_in_float32():
    """In bfloat16 a sum of 512 equal terms stops growing at 256."""
    layer = nn.Linear(1, 1, bias=False).bfloat16()
    x = torch.ones(1, 512, 1, dtype=torch.bfloat16, requires_grad=True)
    in_tiles(layer, x, 512, layer.parameters()).sum().backward()
    assert float(layer.weight.grad) == 512


def _mlp(tiles: int, scatter_norms: bool):
    size = dist.get_world_size()
    model = settings({"tensor": size}).model
    context = Context(groups_of(tensor=size), Recompute(mlp_tiles=tiles), scatter_norms)
    mlp = make_mlp(by_name(spec_of(model).layer_of(0)), context, model.activation).double()
    torch.manual_seed(dist.get_rank())
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.2)
    return mlp


def _split_over_tensor_ranks(tiles: int, scatter_norms: bool, later: bool) -> None:
    found = []
    for number in (1, tiles):
        mlp = _mlp(number, scatter_norms)
        torch.manual_seed(7 + (dist.get_rank() if scatter_norms else 0))
        x = torch.randn(2, 5, 32, dtype=torch.float64, requires_grad=True)
        weights = LaterGradients()
        if later:
            with weights.active(), weights.collected(0):
                y = mlp(x)
                y.square().sum().backward()
            # Tiles put nothing off: what their weights' gradients need would be there for all tokens.
            assert {parameter.grad is None for parameter in mlp.parameters()} == {number == 1}
            weights.compute(0)
        else:
            y = mlp(x)
            y.square().sum().backward()
        found.append((y.detach(), x.grad, [parameter.grad for parameter in mlp.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


@pytest.mark.dist
@parametrize_pairs(tiles=(2, 3, 5), scatter_norms=(False, True), later=(False, True))
def test_tiles_of_a_split_mlp_give_what_the_whole_gives(tiles, scatter_norms, later):
    run_ranks(2, _split_over_tensor_ranks, tiles, scatter_norms, later)
