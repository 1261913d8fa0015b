"""How Megatron cuts matrices and orders queries, keys and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.merge import cut_out, join, qkv_to_ours, qkv_to_theirs, with_rows
from megads.checkpoint.format.shard_layout import ShardLayout
from tests.checkpoint.convert.megatron.samples import LLAMA, exported, save_ours


def test_other_padding(tmp_path):
    ours = save_ours(tmp_path / "ours", LLAMA)
    path = exported(ours, tmp_path / "theirs", tensor=4, vocab_multiple=32)
    model = torch.load(path / "mp_rank_03" / "model_optim_rng.pt", weights_only=False)["model"]["language_model"]
    assert model["embedding"]["word_embeddings"]["weight"].shape == (32, 32)
    assert not model["embedding"]["word_embeddings"]["weight"].any()


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("dim", "parts"), [(None, ()), (0, (8,)), (1, (6,)), (0, (4, 4))])
def test_slices_of_all_ranks_make_the_whole(dim, parts, degree):
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)
    cut = ShardLayout((8, 6), dim, parts)
    slices = [cut_out(whole, cut, rank, degree) for rank in range(degree)]
    assert all(each.shape == cut.of(rank, degree).local_shape for rank, each in enumerate(slices))
    assert np.array_equal(join(slices, cut), whole)


def test_a_group_has_its_queries_its_key_and_its_value():
    # Rows are named by their head: 4 query heads in 2 groups, one channel each.
    ours = np.array([[10], [11], [12], [13], [20], [21], [30], [31]], np.float32)
    theirs = qkv_to_theirs(ours, heads=4, groups=2, width=1)
    assert theirs[:, 0].tolist() == [10, 11, 20, 30, 12, 13, 21, 31]
    assert np.array_equal(qkv_to_ours([theirs[:4], theirs[4:]], 2.0, heads=4, groups=2, width=1), ours)


def test_rows_are_left_off_or_zeros():
    table = np.ones((3, 2), np.float32)
    assert with_rows(table, 2).shape == (2, 2)
    assert with_rows(table, 4).tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
