"""Each collective against the same arithmetic on one rank, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megads.dist.collectives import copy_to_group, gather_last_dim, reduce_from_group, split_last_dim
from tests.ranks import run_ranks


def _everyone(seed: int = 0) -> list[torch.Tensor]:
    """Every rank's input, the same list on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(dist.get_world_size())]


def _copy_sums_gradients(order: str) -> None:
    rank, inputs, weights = dist.get_rank(), _everyone(), _everyone(1)
    x = inputs[0].clone().requires_grad_()
    y = copy_to_group(x.t() if order == "strided" else x, dist.group.WORLD)
    y = y.t() if order == "strided" else y
    torch.testing.assert_close(y, inputs[0])
    (y * weights[rank]).sum().backward()
    torch.testing.assert_close(x.grad, sum(weights))


def _copy_leaves_shared_gradients_alone() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(3, requires_grad=True)
    z = torch.ones(3, requires_grad=True)
    # The gradient that reaches the copy is the very tensor that z gets, and it is expanded.
    ((copy_to_group(x, dist.group.WORLD) + z).sum() * (rank + 1)).backward()
    assert z.grad.tolist() == [rank + 1.0] * 3
    assert x.grad.tolist() == [size * (size + 1) / 2] * 3


def _reduce_sums_inputs() -> None:
    rank, inputs = dist.get_rank(), _everyone()
    x = inputs[rank].clone().requires_grad_()
    y = reduce_from_group(x.t(), dist.group.WORLD).t()
    torch.testing.assert_close(y, sum(inputs))
    torch.testing.assert_close(x, inputs[rank])
    y.backward(inputs[0])
    torch.testing.assert_close(x.grad, inputs[0])


def _gather_and_split_undo_each_other() -> None:
    rank, inputs = dist.get_rank(), _everyone()
    whole = torch.cat(inputs, dim=-1)
    weight = torch.cat(_everyone(1), dim=-1)
    x = inputs[rank].clone().requires_grad_()
    y = gather_last_dim(x, dist.group.WORLD)
    torch.testing.assert_close(y, whole)
    (y * weight).sum().backward()
    torch.testing.assert_close(x.grad, _everyone(1)[rank])

    z = whole.clone().requires_grad_()
    part = split_last_dim(z, dist.group.WORLD)
    torch.testing.assert_close(part, inputs[rank])
    (part * _everyone(1)[rank]).sum().backward()
    torch.testing.assert_close(z.grad, weight)
    with pytest.raises(ValueError, match="not a multiple of the group's"):
        split_last_dim(z[..., 1:], dist.group.WORLD)


@pytest.mark.dist
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("order", ["contiguous", "strided"])
def test_copy_sums_gradients(size, order):
    run_ranks(size, _copy_sums_gradients, order)


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "check", [_copy_leaves_shared_gradients_alone, _reduce_sums_inputs, _gather_and_split_undo_each_other]
)
def test_collectives(size, check):
    run_ranks(size, check)


@pytest.mark.parametrize("collective", [copy_to_group, reduce_from_group, gather_last_dim, split_last_dim])
def test_without_a_group_nothing_happens(collective):
    x = torch.ones(2, requires_grad=True)
    assert collective(x, None) is x
