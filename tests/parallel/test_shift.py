"""What the rank before hands on, and the way of its gradient."""

from __future__ import annotations

import pytest

from tests.ranks import groups_of, run_ranks


def _shifts(size: int) -> None:
    import torch

    from megads.parallel.shift import from_previous

    groups = groups_of(seq=size)
    rank, group = groups.seq_rank, groups.seq
    x = torch.full((2, 3), float(rank + 1), dtype=torch.float64).t().requires_grad_()  # not contiguous
    found = from_previous(x, group)
    assert torch.equal(found, torch.full((3, 2), float(rank), dtype=torch.float64))
    found.backward(torch.full((3, 2), 10.0 * rank, dtype=torch.float64))
    # Nobody follows the last rank.
    assert torch.equal(x.grad, torch.full((3, 2), 10.0 * (rank + 1) if rank + 1 < size else 0.0, dtype=torch.float64))


@pytest.mark.dist
@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_gets_what_the_one_before_has(size):
    run_ranks(size, _shifts, size)
