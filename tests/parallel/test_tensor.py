"""Split layers against whole ones: outputs and all gradients, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from megads.errors import ConfigError
from megads.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    Shard,
    VocabParallelEmbedding,
    join_shards,
    take_shard,
)
from tests.ranks import groups_of, run_ranks

DEGREES = [1, 2, 4]


def _fill(split: nn.Parameter, full: Tensor) -> None:
    with torch.no_grad():
        split.copy_(_mine(full, split.shard))


def _mine(full: Tensor, shard: Shard | None) -> Tensor:
    return take_shard(full, shard, dist.get_rank(), dist.get_world_size())


def _mlp_matches_one_rank(fused: tuple[int, ...]) -> None:
    """A split up/down projection gives the output and the gradients of the whole one."""
    group = groups_of(tensor=dist.get_world_size()).tensor
    up, down = nn.Linear(6, sum(fused)).double(), nn.Linear(fused[0], 6).double()

    def product(y: Tensor, parts: int) -> Tensor:
        return torch.stack(y.chunk(parts, dim=-1)).tanh().prod(dim=0)

    x_ref = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    y_ref = down(product(up(x_ref), len(fused)))
    y_ref.square().sum().backward()

    col, row = ColumnParallelLinear(6, fused, group).double(), RowParallelLinear(fused[0], 6, group).double()
    pairs = [(col.weight, up.weight), (col.bias, up.bias), (row.weight, down.weight), (row.bias, down.bias)]
    for split, full in pairs:
        _fill(split, full)
    x = x_ref.detach().requires_grad_()
    y = row(product(col(x), len(fused)))
    y.square().sum().backward()

    torch.testing.assert_close(y, y_ref)
    torch.testing.assert_close(x.grad, x_ref.grad)
    for split, full in pairs:
        torch.testing.assert_close(split.grad, _mine(full.grad, split.shard))


def _embedding_matches_one_rank() -> None:
    group = groups_of(tensor=dist.get_world_size()).tensor
    whole = nn.Embedding(16, 5).double()
    split = VocabParallelEmbedding(16, 5, group).double()
    _fill(split.weight, whole.weight)
    # every rank's rows, repeats included
    tokens = torch.tensor([[0, 15, 3, 3], [4, 7, 8, 11]])
    weight = torch.randn(2, 4, 5, dtype=torch.float64)
    (whole(tokens) * weight).sum().backward()
    (split(tokens) * weight).sum().backward()
    torch.testing.assert_close(split(tokens), whole(tokens))
    torch.testing.assert_close(split.weight.grad, _mine(whole.weight.grad, split.weight.shard))


def _input_without_gradient() -> None:
    """The first layer of a model has no gradient to pass on; the rest is as before."""
    group = groups_of(tensor=2).tensor
    col = ColumnParallelLinear(3, (4,), group, bias=False).double()
    row = RowParallelLinear(4, 3, group, bias=False).double()
    nn.init.ones_(col.weight)
    nn.init.ones_(row.weight)
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    y = row(col(x))
    torch.testing.assert_close(y, 4 * x.sum(dim=1, keepdim=True).expand(2, 3))
    y.sum().backward()
    torch.testing.assert_close(col.weight.grad, 3 * x.sum(dim=0).expand(2, 3))


def _scattered_mlp_matches_one_rank(batch: int) -> None:
    """The same on activations cut along the sequence; the row layer's bias gets its whole gradient."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = groups_of(tensor=size).tensor
    up, down = nn.Linear(6, 8).double(), nn.Linear(8, 5).double()
    x_ref = torch.randn(batch, 2 * size, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(batch, 2 * size, 5, dtype=torch.float64)
    y_ref = down(up(x_ref).tanh())
    (y_ref * weight).sum().backward()

    col = ColumnParallelLinear(6, (8,), group, scattered=True).double()
    row = RowParallelLinear(8, 5, group, scattered=True).double()
    pairs = [(col.weight, up.weight), (col.bias, up.bias), (row.weight, down.weight), (row.bias, down.bias)]
    for split, full in pairs:
        _fill(split, full)
    x = x_ref.detach().chunk(size, dim=1)[rank].clone().requires_grad_()
    y = row(col(x).tanh())
    (y * weight.chunk(size, dim=1)[rank]).sum().backward()

    assert y.is_contiguous()
    torch.testing.assert_close(y, y_ref.chunk(size, dim=1)[rank])
    torch.testing.assert_close(x.grad, x_ref.grad.chunk(size, dim=1)[rank])
    for split, full in pairs:
        torch.testing.assert_close(split.grad, _mine(full.grad, split.shard))


def _scattered_embedding_matches_one_rank() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = nn.Embedding(16, 5).double()
    split = VocabParallelEmbedding(16, 5, groups_of(tensor=size).tensor, scattered=True).double()
    _fill(split.weight, whole.weight)
    tokens = torch.tensor([[0, 15, 3, 3], [4, 7, 8, 11]])
    weight = torch.randn(2, 4, 5, dtype=torch.float64)
    (whole(tokens) * weight).sum().backward()
    mine = split(tokens)
    (mine * weight.chunk(size, dim=1)[rank]).sum().backward()
    assert mine.is_contiguous()
    torch.testing.assert_close(mine, whole(tokens).chunk(size, dim=1)[rank])
    torch.testing.assert_close(split.weight.grad, _mine(whole.weight.grad, split.weight.shard))


def _frozen_scattered_layers() -> None:
    """Only what is asked for is computed: frozen weights, or an input without gradient."""
    group = groups_of(tensor=2).tensor
    col = ColumnParallelLinear(3, (4,), group, scattered=True).double()
    row = RowParallelLinear(4, 3, group, scattered=True).double()
    for weight in (*col.parameters(), *row.parameters()):
        nn.init.ones_(weight)
    x = torch.ones(1, 2, 3, dtype=torch.float64)
    row(col(x)).sum().backward()
    # 4 positions over both ranks, 3 outputs
    torch.testing.assert_close(col.weight.grad, torch.full_like(col.weight, 12.0))
    for weight in (*col.parameters(), *row.parameters()):
        weight.grad = None
        weight.requires_grad_(False)
    x.requires_grad_()
    row(col(x)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 12.0))
    assert col.weight.grad is None


@pytest.mark.dist
@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("batch", [1, 3])
def test_scattered_mlp_matches_one_rank(degree, batch):
    run_ranks(degree, _scattered_mlp_matches_one_rank, batch)


@pytest.mark.dist
@pytest.mark.parametrize("degree", [2, 4])
def test_scattered_embedding_matches_one_rank(degree):
    run_ranks(degree, _scattered_embedding_matches_one_rank)


@pytest.mark.dist
def test_frozen_scattered_layers():
    run_ranks(2, _frozen_scattered_layers)


@pytest.mark.dist
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("fused", [(8,), (8, 8), (8, 8, 8)], ids=str)
def test_split_mlp_matches_one_rank(degree, fused):
    run_ranks(degree, _mlp_matches_one_rank, fused)


@pytest.mark.dist
@pytest.mark.parametrize("degree", DEGREES)
def test_split_embedding_matches_one_rank(degree):
    run_ranks(degree, _embedding_matches_one_rank)


@pytest.mark.dist
def test_input_without_gradient():
    run_ranks(2, _input_without_gradient)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize(
    "shard", [Shard(0, (8,)), Shard(1, (12,)), Shard(0, (8, 4, 4)), Shard(1, (4, 8)), None], ids=str
)
def test_joining_undoes_taking(degree, shard):
    shape = [3, 3]
    if shard is not None:
        shape[shard.dim] = sum(shard.parts)
    full = torch.arange(shape[0] * shape[1]).view(shape)
    slices = [take_shard(full, shard, rank, degree) for rank in range(degree)]
    torch.testing.assert_close(join_shards(slices, shard), full)


def test_every_part_is_cut_by_itself():
    full = torch.arange(8)  # q = 0 1 2 3, k = 4 5, v = 6 7
    shard = Shard(0, (4, 2, 2))
    assert take_shard(full, shard, 0, 2).tolist() == [0, 1, 4, 6]
    assert take_shard(full, shard, 1, 2).tolist() == [2, 3, 5, 7]
    assert shard.local_parts(2) == (2, 1, 1)


def test_without_a_group_the_layers_are_plain():
    col, row = ColumnParallelLinear(3, (4, 2), None), RowParallelLinear(6, 3, None)
    for weight in (*col.parameters(), *row.parameters()):
        nn.init.normal_(weight)
    x = torch.randn(2, 3)
    expected = F.linear(F.linear(x, col.weight, col.bias), row.weight, row.bias)
    torch.testing.assert_close(row(col(x)), expected)
    assert (col.weight.shard, col.bias.shard) == (Shard(0, (4, 2)), Shard(0, (4, 2)))
    assert (row.weight.shard, row.bias.shard) == (Shard(1, (6,)), None)


def test_what_can_not_be_cut_is_refused():
    with pytest.raises(ConfigError, match="6 cannot be split over 4 tensor-parallel ranks; use a TP that divides 6"):
        take_shard(torch.zeros(6), Shard(0, (6,)), 0, 4)
