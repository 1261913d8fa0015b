"""From a checkpoint into the memory of an engine."""

from __future__ import annotations

import pytest
import torch

from megads.checkpoint import load as module
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.load import load_shards
from megads.checkpoint.owned_shard import OwnedShard
from megads.errors import CheckpointError
from tests.checkpoint.made import KINDS, TENSORS, make, numbers_of, slice_of


def shards_of(rank, first=1):
    """Return shards of every parameter on a rank of four, all but the first elements; their memory is not zero."""
    cuts = {name: cut.of(rank, 4) for name, cut in TENSORS.items()}
    return [
        OwnedShard(name, cut, first, {kind: torch.full((cut.count - first,), 7.0) for kind in KINDS})
        for name, cut in cuts.items()
    ]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_shard_of_another_layout_gets_its_elements_and_other_kinds_are_zero(tmp_path, rank):
    numbers, shards = numbers_of(TENSORS), shards_of(rank)
    with Reader(make(tmp_path, numbers=numbers, degree=2)) as reader:
        load_shards(reader, shards, ("weight", "exp_avg"))
    for shard in shards:
        for kind in ("weight", "exp_avg"):
            expected = slice_of(numbers[kind][shard.name], shard.cut).reshape(-1)[1:]
            assert shard.tensors[kind].tolist() == expected.tolist()
        assert not shard.tensors["exp_avg_sq"].any()


def test_of_another_model(tmp_path):
    other = OwnedShard("head.weight", TENSORS["embedding.weight"], 0, {"weight": torch.zeros(48)})
    with Reader(make(tmp_path)) as reader, pytest.raises(CheckpointError, match="holds no head"):
        load_shards(reader, [other], ("weight",))


def test_memory_on_the_way_to_a_device_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 5)
    filled = []
    monkeypatch.setattr(module, "_fill", lambda reader, waiting: filled.append(sum(h.numel() for _, h, _ in waiting)))
    meta = OwnedShard("embedding.weight", TENSORS["embedding.weight"], 0, {"weight": torch.zeros(48, device="meta")})
    with Reader(make(tmp_path)) as reader:
        load_shards(reader, [meta], ("weight",))
    assert (sum(filled), max(filled)) == (48, 5)
