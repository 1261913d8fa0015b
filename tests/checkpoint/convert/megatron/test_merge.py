"""How Megatron cuts matrices and orders queries, keys and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.merge import cut_out, qkv_to_ours, qkv_to_theirs, with_rows
from megads.checkpoint.format.shard_layout import ShardLayout, boxes
from tests.checkpoint.convert.megatron.samples import LLAMA, exported, save_ours


def test_other_padding(tmp_path):
    ours = save_ours(tmp_path / "ours", LLAMA)
    path = exported(ours, tmp_path / "theirs", tensor=4, vocab_multiple=32)
    model = torch.load(path / "mp_rank_03" / "model_optim_rng.pt", weights_only=False)["model"]["language_model"]
    assert model["embedding"]["word_embeddings"]["weight"].shape == (32, 32)
    assert not model["embedding"]["word_embeddings"]["weight"].any()


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("dim", "parts"), [(None, ()), (0, (8,)), (1, (6,)), (0, (4, 4))])
def test_a_slice_has_what_its_layout_says(dim, parts, degree):
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)
    for rank in range(degree):
        cut = ShardLayout((8, 6), dim, parts, rank, degree)
        found = cut_out(whole, cut, rank, degree)
        assert found.shape == cut.local_shape
        for box in boxes(cut, 0, cut.count):
            for row in range(box.top, box.bottom):
                at = box.at(row, box.left)
                assert np.array_equal(found.flatten()[at : at + box.right - box.left], whole[row, box.left : box.right])


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
