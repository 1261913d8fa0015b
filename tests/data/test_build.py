from __future__ import annotations

import resource

import pytest

from megads.data.build import allow_open_files, build_splits, read_shards, samples_of
from megads.data.file_list import Shard
from megads.errors import DataError
from tests.data.factory import make_run, write_dataset, write_list


def test_requested_samples():
    run = make_run(train={"train_iters": 7, "global_batch": 3, "eval_iters": 2, "eval_interval": 1})
    assert samples_of(run) == {"train": 21, "valid": 6, "test": 0}
    assert samples_of(make_run(train={"eval_interval": 0}))["valid"] == 0
    assert samples_of(make_run(data={"val_split": 0}))["valid"] == 0
    assert samples_of(make_run(data={"test_split": 1}))["test"] == 4


def test_splits_share_no_document(tmp_path):
    run = make_run(data={"test_split": 2, "train_split": 6}, model={"vocab_size": 1000})
    prefix = write_dataset(tmp_path, [50] * 10, 1000, None)
    splits = build_splits(run, [Shard(1, prefix, "c")])
    seen = {name: {int(t) for i in range(len(split)) for t in split[i]} for name, split in splits.items()}
    assert {name: len(split) for name, split in splits.items()} == {"train": 16, "valid": 4, "test": 4}
    assert max(seen["train"]) < 300 <= min(seen["valid"])
    assert max(seen["valid"]) < 400 <= min(seen["test"])


def test_nothing_asked_for_is_none(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10)
    splits = build_splits(make_run(train={"eval_iters": 0}), [Shard(1, prefix, "c")])
    assert splits["train"] is not None
    assert splits["valid"] is splits["test"] is None


def test_files_without_weight_are_not_opened(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10)
    splits = build_splits(make_run(), [Shard(0, "/none", "c"), Shard(1, prefix, "c")])
    assert len(splits["train"]) == 16


def test_a_file_too_small_for_validation_is_left_out_there_only(tmp_path):
    big = write_dataset(tmp_path, [50] * 10, 1000, None, "big")
    small = write_dataset(tmp_path, [50] * 2, 1000, None, "small", 700)
    run = make_run(model={"vocab_size": 1000}, train={"train_iters": 40})
    splits = build_splits(run, [Shard(1, big, "c"), Shard(1, small, "c")])
    assert {int(splits["train"][i][0]) >= 700 for i in range(160)} == {True, False}
    assert all(int(splits["valid"][i][0]) < 700 for i in range(4))


def test_split_without_documents(tmp_path):
    shards = [Shard(1, write_dataset(tmp_path, [50] * 2), "c")]
    with pytest.raises(DataError) as error:
        build_splits(make_run(), shards)
    assert "valid: 4 samples are asked for, but the split 8,2,0 (train,valid,test)" in str(error.value)
    assert "no document of 2 documents; raise VAL_SPLIT, or EVAL_INTERVAL=0" in str(error.value)
    with pytest.raises(DataError, match=r"train: 16 samples .* raise TRAIN_SPLIT"):
        build_splits(make_run(data={"train_split": 0}), shards)


def test_split_of_less_than_one_sample(tmp_path):
    shards = [Shard(1, write_dataset(tmp_path, [50] * 8 + [4] * 2), "c")]
    with pytest.raises(DataError, match=r"valid: 8 tokens are less than one sample of SEQ \+ 1 = 9"):
        build_splits(make_run(), shards)


def test_shards_come_from_the_list(tmp_path):
    path = write_list(tmp_path / "l", "1 x c")
    assert read_shards(make_run(data={"file_list": str(path)})) == [Shard(1.0, str(tmp_path / "x"), "c")]
    with pytest.raises(DataError, match="the demo corpus is not there"):
        read_shards(make_run(data={"cache_dir": str(tmp_path)}))


def test_long_lists_raise_the_limit_of_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        allow_open_files(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 656
        allow_open_files(2)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 656
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if hard != resource.RLIM_INFINITY:
        with pytest.raises(DataError, match=f"the limit is {hard}"):
            allow_open_files(hard)
