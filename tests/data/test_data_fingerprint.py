from __future__ import annotations

import pytest

from megads.data.datasets import build_splits, data_fingerprint
from megads.data.sources.file_list import Shard
from tests.data.factory import make_run, write_dataset


def _fingerprint(shards: list[Shard], **train: object) -> str:
    splits = build_splits(make_run(train=train), shards)
    return data_fingerprint(shards, splits["train"].plan.files())


@pytest.fixture
def shards(tmp_path) -> list[Shard]:
    return [
        Shard(1, write_dataset(tmp_path, [9] * 5, name="a"), "x"),
        Shard(3, write_dataset(tmp_path, [9] * 5, name="b"), "y"),
    ]


def test_copies_in_another_folder_and_another_length_of_the_run_are_the_same_data(shards, tmp_path):
    known = _fingerprint(shards)
    (tmp_path / "copy").mkdir()
    copies = [
        Shard(2 * shard.weight, write_dataset(tmp_path / "copy", [9] * 5, name=name), shard.corpus)
        for shard, name in zip(shards, "ab", strict=True)
    ]
    assert _fingerprint(copies) == known
    assert _fingerprint([*shards, Shard(0, "nowhere", "z")], train_iters=9) == known


@pytest.mark.parametrize("change", ["weight", "corpus", "name", "size", "order"])
def test_what_changes_the_order_is_seen(shards, tmp_path, change):
    known, (first, second) = _fingerprint(shards), shards
    if change == "size":
        write_dataset(tmp_path, [9] * 6, name="a")
    changed = {
        "weight": [first, Shard(4, second.prefix, second.corpus)],
        "corpus": [first, Shard(3, second.prefix, "x")],
        "name": [first, Shard(3, write_dataset(tmp_path, [9] * 5, name="c"), "y")],
        "size": shards,
        "order": [second, first],
    }
    assert _fingerprint(changed[change]) != known
