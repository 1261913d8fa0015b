"""The shares of the ranks are everything once, for any number of elements."""

from __future__ import annotations

import pytest

from tests.ranks import groups_of, run_ranks


def _together_everything(ranks: int) -> None:
    import torch

    from megads.engine.shares import join_shares, share_of

    groups = groups_of(data=ranks)
    for count in (0, 1, 2, ranks, ranks + 1, 3 * ranks - 1):
        mine = share_of(count, groups)
        everyone = torch.full((count,), -1.0)
        everyone[mine] = torch.arange(count, dtype=torch.float32)[mine]
        join_shares(everyone, groups)
        assert torch.equal(everyone, torch.arange(count, dtype=torch.float32)), count
        assert 0 <= mine.start <= mine.stop <= count


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_joined_shares_are_everything(ranks):
    run_ranks(ranks, _together_everything, ranks)
