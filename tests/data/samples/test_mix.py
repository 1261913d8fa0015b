from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from megads.data.file_list import Shard
from megads.data.indexed.mmap import IndexedDataset
from megads.data.samples.blend import blend_index
from megads.data.samples.gpt import GPTSamples
from megads.data.samples.mix import Mix, requested_samples
from megads.errors import DataError
from tests.data.factory import write_dataset

SEQ, SEED = 4, 1234


def _files(tmp_path, weights: list[float], corpora: str, size: int) -> tuple[list[Shard], list[GPTSamples]]:
    """File ``i`` holds the tokens 1000 i .. 1000 i + 999, so a sample tells its file."""
    shards = [
        Shard(weight, write_dataset(tmp_path, [30] * 20, 9000, None, f"f{i}", 1000 * i), corpora[i])
        for i, weight in enumerate(weights)
    ]
    requests = requested_samples(weights, size)
    files = [
        GPTSamples(IndexedDataset(shard.prefix), range(20), SEQ, count, SEED)
        for shard, count in zip(shards, requests, strict=True)
    ]
    return shards, files


def test_requests_follow_megatrons_formula():
    assert requested_samples([1, 3], 1000) == [252, 754]
    assert requested_samples([0.3, 0.7], 10) == [4, 8]


def test_one_corpus_is_its_files_laid_end_to_end_and_shuffled_once(tmp_path):
    shards, files = _files(tmp_path, [1, 3], "aa", 100)
    mix = Mix(shards, files, 100, SEED)
    row = [files[0][i] for i in range(26)] + [files[1][i] for i in range(76)]
    order = np.arange(102)
    np.random.RandomState(SEED).shuffle(order)
    assert [mix[i].tolist() for i in range(100)] == [row[j].tolist() for j in order[:100]]


def test_corpora_are_blended_by_the_sums_of_their_weights(tmp_path):
    shards, files = _files(tmp_path, [0.1, 0.5, 0.2, 0.2], "abac", 200)
    mix = Mix(shards, files, 200, SEED)
    taken_from = [int(mix[i][0]) // 1000 for i in range(200)]
    corpus_of = {0: 0, 1: 1, 2: 0, 3: 2}  # in order of first appearance: a b c
    sums = [0.1 + 0.2, 0.5, 0.2]
    assert [corpus_of[file] for file in taken_from] == blend_index(sums, 200)[0].tolist()
    share = Counter(taken_from)
    assert share[1] == 100
    assert share[3] == 40
    assert 15 <= share[0] <= 22


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("corpora", ["abcd", "aabb", "aaaa"])
def test_every_sample_of_any_size_is_there(tmp_path, size, corpora):
    """The surplus suffices: no corpus runs out."""
    shards, files = _files(tmp_path, [0.5, 1e-9, 0.25, 3], corpora, size)
    mix = Mix(shards, files, size, SEED)
    assert len(mix) == size
    assert all(mix[i].shape == (SEQ + 1,) for i in range(size))
    with pytest.raises(IndexError):
        mix[size]


def test_id_the_model_does_not_know(tmp_path):
    shards, files = _files(tmp_path, [1], "a", 100)
    with pytest.raises(DataError, match=r"f0: holds token \d+, but the model knows 1 tokens"):
        Mix(shards, files, 100, SEED, vocab_size=1)[0]
