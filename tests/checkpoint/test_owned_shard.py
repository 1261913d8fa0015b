"""Which rank saves a shard."""

from __future__ import annotations

import pytest
import torch

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.owned_shard import OwnedShard


@pytest.mark.parametrize(
    ("dim", "rank", "degree", "is_mine"), [(None, 0, 2, True), (None, 1, 2, False), (0, 1, 2, True), (0, 0, 1, True)]
)
def test_what_every_rank_has_is_saved_by_the_first(dim, rank, degree, is_mine):
    cut = ShardLayout((4, 2), dim, () if dim is None else (4,), rank, degree)
    shard = OwnedShard("norm.weight", cut, 0, {"weight": torch.zeros(3)})
    assert (shard.is_mine, shard.count) == (is_mine, 3)
