from __future__ import annotations

import re

import numpy as np
import pytest

from megads.data.samples.gpt import Stamp
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.masked import sentence_map
from megads.data.samples.masked.sentence_map import Mersenne64, SentenceRecipe, build_map
from megads.data.samples.recipe import Columns
from megads.errors import DataError
from tests.data.samples.in_memory import read_all
from tests.data.samples.sentences import DOCUMENTS, LENGTHS, write_sentences
from tests.data.samples.upstream import megatron_core

GOLDEN = {
    (2, None): "(8,10,13)(4,8,13)(0,3,13)",
    (2, 20): "(0,3,13)(0,3,13)(4,8,13)(8,10,13)(4,8,13)(0,3,13)(8,10,13)(0,3,13)(4,8,13)(8,10,13)(8,10,13)(8,10,13)"
    "(8,10,13)(8,10,2)(4,8,13)(4,8,13)(4,8,13)(0,3,13)(0,3,13)(4,8,13)(0,3,13)",
    (1, 20): "(0,3,13)(3,4,13)(8,10,13)(3,4,13)(3,4,13)(0,3,13)(4,8,13)(3,4,13)(4,8,13)(4,8,13)(3,4,13)(4,8,13)"
    "(0,3,13)(8,10,13)(8,10,13)(8,10,2)(0,3,13)(0,3,13)(4,8,13)(8,10,13)",
}


def _map(lengths, documents, min_sentences: int, wanted: int | None, **changes) -> np.ndarray:
    settings = {"max_length": 13, "seed": 1234, **changes}
    return build_map(
        np.array(lengths, np.int32),
        np.array(documents, np.int64),
        min_sentences=min_sentences,
        num_samples=wanted,
        **settings,
    )


@pytest.mark.parametrize(("min_sentences", "wanted"), GOLDEN)
def test_map_is_megatrons(min_sentences, wanted):
    got = _map(LENGTHS, DOCUMENTS, min_sentences, wanted)
    rows = re.findall(r"\((\d+),(\d+),(\d+)\)", GOLDEN[min_sentences, wanted])
    assert got.tolist() == [[int(word) for word in row] for row in rows]
    assert got.dtype == np.uint32


@pytest.mark.parametrize("block", range(10))
def test_map_equals_the_compiled_one(block):
    core, dice = megatron_core(), np.random.RandomState(block)
    for case in range(20):
        counts = dice.randint(0, 12, dice.randint(2, 60))
        documents = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        lengths = dice.randint(0, 60, documents[-1] + 1).astype(np.int32)
        lengths[dice.rand(len(lengths)) < 0.02] = 513
        wanted, seed = int(dice.randint(1, 500)), int(dice.randint(1, 2**31 - 1))
        max_length, least = int(dice.randint(2, 130)), 1 + case % 2
        share = float(dice.choice([0, 0.1, 0.3, 0.4, 1]))
        if not any(count >= least for count in counts):
            continue
        theirs = core.build_mapping(documents, lengths, 2**31 - 2, wanted, max_length, share, seed, False, least)
        ours = _map(lengths, documents, least, wanted, max_length=max_length, seed=seed, short_share=share)
        assert np.array_equal(ours, theirs), (block, case)
        assert ours.dtype == theirs.dtype


def test_long_map_equals_the_compiled_one():
    """Long enough for several draws."""
    core, dice = megatron_core(), np.random.RandomState(0)
    documents = np.arange(0, 30_001, 3).astype(np.int64)
    lengths = dice.randint(1, 60, 30_000).astype(np.int32)
    theirs = core.build_mapping(documents, lengths, 2**31 - 2, 60_000, 40, 0.1, 7, False, 1)
    ours = _map(lengths, documents, 1, 60_000, max_length=40, seed=7)
    assert np.array_equal(ours, theirs)


def test_documents_without_samples():
    for lengths, documents in (([5, 600], [0, 2]), ([3], [0, 1]), ([], [0, 0])):
        with pytest.raises(DataError, match=r"none of 1 documents has 2 sentences of at most 512 tokens"):
            _map(lengths, documents, 2, 9)


def test_mersenne_twisters_are_those_of_the_standard():
    """The 10000th numbers that ISO C++ [rand.predef] gives for the default seed."""
    assert int(Mersenne64(5489).draw(10_000)[-1]) == 9981545732273789042
    assert int(np.random.RandomState(5489).randint(0, 2**32, 10_000, np.uint32)[-1]) == 4123659995


def test_mersenne_draws_the_same_in_any_portions():
    whole, parts = Mersenne64(3).draw(50_000), Mersenne64(3)
    pieces = [parts.draw(count) for count in (0, 1, 310, 1, 1, 20_000, 29_687)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_shuffle_equals_the_plain_loop():
    for count in (1, 2, 100, 40_000):
        rng, order = Mersenne64(5), list(range(count))
        for i, drawn in zip(range(count - 1, 0, -1), rng.draw(count - 1).tolist(), strict=True):
            j = drawn % (i + 1)
            order[i], order[j] = order[j], order[i]
        assert sentence_map._shuffled(count, 5).tolist() == order


def _rows(columns: Columns) -> list[list[int]]:
    return read_all(columns)["samples"].reshape(-1, 3).tolist()


def test_map_of_a_file_goes_through_the_cache(tmp_path):
    prefix = write_sentences(tmp_path)
    recipe = SentenceRecipe(prefix, Stamp.of(prefix), 0, 4, 13, 2, None, 1234)
    cache = Cache(tmp_path / "cache")
    for _ in range(2):
        assert _rows(cache.get(recipe)) == [[8, 10, 13], [4, 8, 13], [0, 3, 13]]
    part = SentenceRecipe(prefix, Stamp.of(prefix), 2, 4, 13, 2, None, 1234)
    assert sorted(_rows(cache.get(part))) == [[4, 8, 13], [8, 10, 13]]
    none = SentenceRecipe(prefix, Stamp.of(prefix), 1, 2, 13, 2, None, 1234)
    with pytest.raises(DataError, match=r"sentences: none of 1 documents has 2 sentences"):
        cache.get(none)
