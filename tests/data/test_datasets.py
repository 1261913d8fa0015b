from __future__ import annotations

import os
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from megads.data.datasets import Files, allow_open_files, build_splits, make_plans, read_shards, samples_of
from megads.data.formats.writer import IndexedWriter, write_index
from megads.data.samples.gpt import GPTRecipe
from megads.data.samples.mix import OrderRecipe
from megads.data.sources.file_list import Shard
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run, write_dataset, write_list


def test_requested_samples():
    run = make_run(train={"train_iters": 7, "global_batch": 3, "eval_iters": 2, "eval_interval": 1})
    assert samples_of(run) == {"train": 21, "valid": 6, "test": 0}
    assert samples_of(make_run(train={"eval_interval": 0}))["valid"] == 0
    assert samples_of(make_run(data={"val_split": 0}))["valid"] == 0
    assert samples_of(make_run(data={"test_split": 1}))["test"] == 4


def test_split_text_stands_for_the_three_shares():
    run = make_run(data={"split": "969, 30,1", "train_split": 5})
    assert run.data.shares() == (969, 30, 1)
    assert samples_of(run) == {"train": 16, "valid": 4, "test": 4}
    assert samples_of(make_run(data={"split": "1"}))["valid"] == 0


def test_lists_of_their_own_give_their_share_to_training():
    data = {"split": "90,7,3", "valid_file_list": "v"}
    assert make_run(data=data).data.shares() == (97, 0, 3)
    assert make_run(data={**data, "test_file_list": "t"}).data.shares() == (100, 0, 0)
    run = make_run(data={"val_split": 0, "valid_file_list": "v", "test_file_list": "t"})
    assert samples_of(run) == {"train": 16, "valid": 4, "test": 4}


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
    assert "valid: 4 samples are needed, but the split 8,2,0 (train,valid,test)" in str(error.value)
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
    with pytest.raises(DataError, match="the demo corpus is missing"):
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


def _seen(split) -> set[int]:
    return {int(token) for i in range(len(split)) for token in split[i]}


def test_validation_list_is_read_whole_and_the_other_data_trained_on_whole(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10, 5000, None)
    held = [write_dataset(tmp_path, [50] * 4, 5000, None, f"held{i}", 1000 * (i + 1)) for i in range(2)]
    run = make_run(
        data={
            "valid_file_list": str(write_list(tmp_path / "v", f"1 {held[0]} a")),
            "test_file_list": str(write_list(tmp_path / "t", f"1 {held[1]} b")),
            "test_split": 1,
        },
        model={"vocab_size": 5000},
        train={"train_iters": 99, "eval_iters": 20},
    )
    splits = build_splits(run, [Shard(1, prefix, "c")])
    seen = {name: _seen(split) for name, split in splits.items()}
    assert (min(seen["train"]), max(seen["train"])) == (0, 499)
    assert min(seen["valid"]) == 1000
    assert 1150 < max(seen["valid"]) < 1200
    assert min(seen["test"]) >= 2000
    assert [split.corpora for split in splits.values()] == [["c"], ["a"], ["b"]]


def test_paths_of_their_own_are_read_whole_in_the_order_of_a_path(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10, 5000, None)
    held = [write_dataset(tmp_path, [50] * 9, 5000, None, f"held{i}", 1000 * (i + 1)) for i in range(2)]
    blend = f"0.3 {held[0]} 0.7 {held[1]}"
    more = {"model": {"vocab_size": 5000}, "train": {"train_iters": 20, "eval_iters": 20, "global_batch": 2}}
    run = make_run(data={"path": prefix, "valid_path": blend, "test_path": held[1], "split": "100,0,0"}, **more)
    splits = build_splits(run, read_shards(run))
    assert (min(_seen(splits["train"])), max(_seen(splits["train"]))) == (0, 499)
    assert min(_seen(splits["test"])) == 2000
    # The same samples as if they were trained on: Megatron-core draws each split from its own files alike.
    same = make_run(data={"path": blend, "split": "100,0,0"}, **{**more, "train": {**more["train"], "eval_iters": 0}})
    assert _all(splits["valid"]) == _all(build_splits(same, read_shards(same))["train"])
    with pytest.raises(ConfigError, match=r"VALID_DATA_PATH=0.3 .* and VALID_DATA_FILE_LIST=l: set only one of them"):
        read_shards(make_run(data={"path": prefix, "valid_path": blend, "valid_file_list": "l"}))


def test_legacy_rule_is_taken(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10, 5000, None)
    stops = {}
    for rule in ("core", "legacy"):
        run = make_run(data={"split": "949,50,1", "split_rule": rule}, train={"eval_iters": 0})
        plan = make_plans(run, [Shard(1, prefix, "c")], Files())["train"]
        stops[rule] = [recipe.last for recipe in plan.files()]
    assert stops == {"core": [9], "legacy": [10]}


def test_sentences_are_documents(tmp_path):
    """In a file that was split into sentences, GPT's documents are the sentences."""
    with IndexedWriter(str(tmp_path / "s"), "u2") as writer:
        for _ in range(5):
            writer.add_document([1, 2, 3, 4, 5, 6])
        writer.finalize()
    whole = (tmp_path / "s.idx").read_bytes()
    lengths, documents = [3] * 10, [0, 2, 4, 6, 8, 10]
    (tmp_path / "s.idx").unlink()
    write_index(tmp_path / "s.idx", "mmap", np.dtype("u2"), np.array(lengths, "i4"), np.array(documents, "i8"))
    assert (tmp_path / "s.idx").read_bytes() != whole
    run = make_run(train={"eval_iters": 0})
    plan = make_plans(run, [Shard(1, str(tmp_path / "s"), "c")], Files())["train"]
    assert [(recipe.first, recipe.last) for recipe in plan.files()] == [(0, 8)]


def test_path_is_read_instead_of_a_list(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 10)
    run = make_run(data={"path": prefix})
    assert [shard.prefix for shard in read_shards(run)] == [prefix]
    plan = make_plans(run, read_shards(run), Files())["train"]
    assert plan.options.plain
    assert [recipe.num_samples for recipe in plan.files()] == [16]
    with pytest.raises(ConfigError, match=r"DATA_PATH=.* and DATA_FILE_LIST=l: set only one of them"):
        read_shards(make_run(data={"path": prefix, "file_list": "l"}))


@pytest.fixture
def made(monkeypatch) -> Counter[str]:
    """Count the indices that are built, by kind."""
    count: Counter[str] = Counter()

    def counting(kind: type) -> None:
        plain = kind.make

        def make(self):
            count[self.kind] += 1
            return plain(self)

        monkeypatch.setattr(kind, "make", make)

    for kind in (GPTRecipe, OrderRecipe):
        counting(kind)
    return count


def _all(split) -> list[list[int]]:
    return [split[i].tolist() for i in range(len(split))]


def test_warm_start_builds_nothing(tmp_path, made):
    shards = [Shard(1, write_dataset(tmp_path, [50] * 10, name=name, seed=i), "c") for i, name in enumerate("ab")]
    run = make_run(data={"cache_dir": str(tmp_path / "cache")})
    first = _all(build_splits(run, shards)["train"])
    assert made == {"gpt": 4, "order": 2}
    assert _all(build_splits(run, shards)["train"]) == first
    assert made == {"gpt": 4, "order": 2}


def test_a_file_that_changes_in_place_is_built_anew(tmp_path, made):
    prefix = write_dataset(tmp_path, [50] * 10)
    run = make_run(data={"cache_dir": str(tmp_path / "cache")}, train={"eval_iters": 0})
    build_splits(run, [Shard(1, prefix, "c")])
    write_dataset(tmp_path, [40, 60] * 5)
    fresh = make_run(data={"cache_dir": str(tmp_path / "fresh")}, train={"eval_iters": 0})
    warm = _all(build_splits(run, [Shard(1, prefix, "c")])["train"])
    assert made["gpt"] == 2
    assert warm == _all(build_splits(fresh, [Shard(1, prefix, "c")])["train"])
    status = os.stat(prefix + ".bin")
    os.utime(prefix + ".bin", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    build_splits(run, [Shard(1, prefix, "c")])
    assert made["gpt"] == 4


CHANGES = {
    "weights": lambda run, shards: (run, [Shard(9, shards[0].prefix, "c"), Shard(1, shards[1].prefix, "c")]),
    "seed": lambda run, shards: (_with(run, "train", seed=1), shards),
    "sequence length": lambda run, shards: (_with(run, "model", seq_length=9), shards),
    "split": lambda run, shards: (_with(run, "data", split="70,30"), shards),
    "files": lambda run, shards: (run, shards[::-1]),
    "corpora": lambda run, shards: (run, [shards[0], Shard(9, shards[1].prefix, "d")]),
    "blending": lambda run, shards: (_with(run, "data", blend_in_corpus=True), shards),
    "shuffling": lambda run, shards: (_with(run, "data", shuffle_in_corpus=False), shards),
    "samples": lambda run, shards: (_with(run, "train", train_iters=30), shards),
}


def _with(run, section: str, **changes):
    return run.model_copy(update={section: getattr(run, section).model_copy(update=changes)})


@pytest.mark.parametrize("name", CHANGES)
def test_a_warm_cache_gives_what_a_fresh_one_gives(tmp_path, name):
    """With a cache keyed by corpus and count alone, swapped weights trained on the old mixture."""
    shards = [
        Shard(weight, write_dataset(tmp_path, [50] * 10, 5000, None, f"f{i}", 1000 * i), "c")
        for i, weight in enumerate((1, 9))
    ]
    run = make_run(
        data={"cache_dir": str(tmp_path / "warm")},
        model={"vocab_size": 5000},
        train={"train_iters": 20, "eval_iters": 0},
    )
    before = _all(build_splits(run, shards)["train"])
    changed, shards = CHANGES[name](run, shards)
    warm = _all(build_splits(changed, shards)["train"])
    fresh = _all(build_splits(_with(changed, "data", cache_dir=str(tmp_path / "fresh")), shards)["train"])
    assert warm == fresh != before


def test_cache_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    run = make_run(data={"cache_dir": str(tmp_path / "file")})
    with pytest.raises(DataError, match="not a directory; set DATA_CACHE_PATH to a folder that can be written"):
        build_splits(run, [Shard(1, write_dataset(tmp_path, [50] * 10), "c")])


def test_cache_of_a_relative_folder_lies_where_the_run_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_splits(make_run(data={"cache_dir": "here"}), [Shard(1, write_dataset(tmp_path, [50] * 10), "c")])
    assert list(Path("here/index").glob("gpt-*.safetensors"))
