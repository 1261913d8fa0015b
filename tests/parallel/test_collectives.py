"""Each collective against the same arithmetic on one rank, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megads.parallel.collectives import (
    copy_all_to_group,
    copy_to_group,
    reduce_from_group,
    scatter_from_group,
    split_rows,
    start_gather,
    start_scatter,
)
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


def _several_gradients_in_one_call() -> None:
    rank, weights, others = dist.get_rank(), _everyone(1), _everyone(2)
    x, z = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True), torch.zeros(4, 3, dtype=torch.float64)
    z.requires_grad_()
    y, t = copy_all_to_group((x, z), dist.group.WORLD)
    ((y * weights[rank]).sum() + (t.t() * others[rank]).sum()).backward()
    torch.testing.assert_close(x.grad, sum(weights))
    torch.testing.assert_close(z.grad, sum(others).t())


def _rows_are_cut_and_their_gradients_gathered() -> None:
    rank, size, rows = dist.get_rank(), dist.get_world_size(), torch.cat(_everyone())
    x = rows.clone().requires_grad_()
    mine = split_rows(x, dist.group.WORLD)
    torch.testing.assert_close(mine, rows.chunk(size)[rank])
    # Transposed, so that the gradient arrives strided.
    (mine.t() * _everyone(1)[rank].t()).sum().backward()
    torch.testing.assert_close(x.grad, torch.cat(_everyone(1)))
    with pytest.raises(ValueError, match="not a multiple of the group's"):
        split_rows(x[1:], dist.group.WORLD)


def _sums_are_scattered_along_the_sequence() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(3)
    for batch in (1, 3):
        inputs = torch.randn(size, batch, 2 * size, 5, dtype=torch.float64, generator=generator)
        weights = torch.randn(batch, 2 * size, 5, dtype=torch.float64, generator=generator)
        x = inputs[rank].clone().requires_grad_()
        y = scatter_from_group(x, dist.group.WORLD)
        torch.testing.assert_close(y, inputs.sum(dim=0).chunk(size, dim=1)[rank])
        (y * weights.chunk(size, dim=1)[rank]).sum().backward()
        torch.testing.assert_close(x.grad, weights)
        torch.testing.assert_close(x, inputs[rank])
    with pytest.raises(ValueError, match="not a multiple of the group's"):
        scatter_from_group(x[:, 1:], dist.group.WORLD)


def _gather_and_scatter_without_autograd() -> None:
    rank, inputs = dist.get_rank(), _everyone()
    whole, work = start_gather(inputs[rank], dist.group.WORLD)
    work.wait()
    torch.testing.assert_close(whole, torch.cat(inputs))
    mine, work = start_scatter(whole * (rank + 1), dist.group.WORLD)
    work.wait()
    torch.testing.assert_close(mine, inputs[rank] * sum(range(1, dist.get_world_size() + 1)))


@pytest.mark.dist
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("order", ["contiguous", "strided"])
def test_copy_sums_gradients(size, order):
    run_ranks(size, _copy_sums_gradients, order)


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "check",
    [
        _copy_leaves_shared_gradients_alone,
        _several_gradients_in_one_call,
        _reduce_sums_inputs,
        _rows_are_cut_and_their_gradients_gathered,
        _sums_are_scattered_along_the_sequence,
        _gather_and_scatter_without_autograd,
    ],
)
def test_collectives(size, check):
    run_ranks(size, check)


@pytest.mark.parametrize("collective", [copy_to_group, reduce_from_group, scatter_from_group, split_rows])
def test_without_a_group_nothing_happens(collective):
    x = torch.ones(2, requires_grad=True)
    assert collective(x, None) is x
    assert copy_all_to_group((x,), None)[0] is x
