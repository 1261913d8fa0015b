"""Buckets against datasketch's index, and the rounds of comparisons against plain loops."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from megads.data.corpus.duplicates import candidates
from megads.data.corpus.duplicates.candidates import Buckets, buckets_of, compare_buckets
from megads.data.corpus.duplicates.groups import Groups
from megads.data.corpus.duplicates.minhash import Signer
from megads.data.corpus.duplicates.shingles import codes_of, similarity
from tests.data.corpus.made import edited, text


def members_of(buckets: Buckets) -> list[list[int]]:
    return [part.tolist() for part in np.split(buckets.members, np.cumsum(buckets.sizes)[:-1])]


@pytest.mark.parametrize("rows", [7, 1 << 14])
def test_buckets_are_those_of_the_library(monkeypatch, rows):
    monkeypatch.setattr(candidates, "_ROWS", rows)
    draw = random.Random(1)
    signer = Signer(20, 9)
    texts = [text(draw, 6) for _ in range(60)]
    texts += [edited(draw, each, 0.1) for each in texts[:40]]
    signatures = np.stack([signer.sign(each) for each in texts])
    index = MinHashLSH(num_perm=20, params=(5, 4))
    for number, signature in enumerate(signatures):
        index.insert(number, MinHash(hashvalues=signature, scheme="affine32"))
    tables = [[sorted(table.get(key)) for key in table.keys()] for table in index.hashtables]  # noqa: SIM118
    wanted = sorted(each for table in tables for each in table if len(each) > 1)
    found = members_of(buckets_of(signatures, 5))
    assert sorted(found) == wanted
    assert len(wanted) > 20


def test_documents_without_company_share_no_bucket():
    buckets = buckets_of(np.arange(30, dtype=np.uint32).reshape(3, 10), 2)
    assert (len(buckets.members), len(buckets.sizes)) == (0, 0)
    assert len(buckets_of(np.empty((0, 10), np.uint32), 2).sizes) == 0


def compare_with(values: dict[tuple[int, int], float], asked: list[tuple[int, int]]):
    def compare(pairs):
        asked.extend((int(one), int(other)) for one, other in pairs)
        return np.array([values.get((int(one), int(other)), 0.0) for one, other in pairs])

    return compare


@pytest.mark.parametrize("seed", range(5))
def test_without_a_limit_every_pair_but_those_of_removed_documents_is_compared(seed):
    """Nothing is similar: each document in turn meets all that are left."""
    asked: list[tuple[int, int]] = []
    buckets = Buckets(np.array([0, 2, 5, 7, 1, 2, 5]), np.array([4, 3]))
    found = compare_buckets(buckets, 8, -1, seed, compare_with({}, asked))
    wanted = sorted({*itertools.combinations((0, 2, 5, 7), 2), *itertools.combinations((1, 2, 5), 2)})
    assert sorted(asked) == wanted == [tuple(pair) for pair in found.documents.tolist()]
    assert found.similarities.tolist() == [0.0] * len(wanted)


def test_a_round_compares_one_document_with_all_others():
    asked: list[tuple[int, int]] = []
    found = compare_buckets(Buckets(np.arange(6), np.array([6])), 6, 1, 3, compare_with({}, asked))
    assert len(asked) == len(set(asked)) == len(found.similarities) == 5
    assert len(set.intersection(*map(set, asked))) == 1


def test_similar_documents_leave_the_bucket():
    """0 to 2 are alike and so are 3 to 5: whoever is drawn, two rounds are enough."""
    same = {pair: 1.0 for part in ((0, 1, 2), (3, 4, 5)) for pair in itertools.combinations(part, 2)}
    for seed in range(8):
        asked: list[tuple[int, int]] = []
        compare_buckets(Buckets(np.arange(6), np.array([6])), 6, -1, seed, compare_with(same, asked))
        assert len(asked) == 5 + 2


def test_a_similarity_of_a_half_is_not_similar():
    asked: list[tuple[int, int]] = []
    compare_buckets(Buckets(np.arange(3), np.array([3])), 3, -1, 0, compare_with({(0, 1): 0.5}, asked))
    assert len(asked) == 3


def test_recall_and_precision_of_the_defaults():
    """Pairs from 0.7 on, as groups: at least 95 % found, at most 2 % wrong. The truth is every pair, compared."""
    seed = 20
    draw = random.Random(seed)
    texts = [text(draw, 8) for _ in range(200)]
    for number in range(200):
        copies = 1 + (number % 10 == 0)
        texts += [edited(draw, texts[number], draw.uniform(0, 0.1)) for _ in range(copies)]
    draw.shuffle(texts)
    shingles = [{each[at : at + 5] for at in range(len(each) - 5)} for each in texts]
    signer, codes = Signer(100, 1234), [codes_of(each) for each in texts]
    signatures = np.stack([signer.sign(each) for each in texts])
    truth = Groups(0.7)
    for one, other in itertools.combinations(range(len(texts)), 2):
        common = len(shingles[one] & shingles[other])
        value = common / (len(shingles[one]) + len(shingles[other]) - common)
        truth.add({str(one): [{str(other): value}]})
    wanted = pairs_of(truth)
    assert len(wanted) > 120

    def measure(bands: int, rounds: int) -> tuple[float, float]:
        def compare(pairs):
            return np.array([similarity(codes[one], codes[other]) for one, other in pairs])

        pairs = compare_buckets(buckets_of(signatures, bands), len(texts), rounds, 1234, compare)
        groups = Groups(0.7)
        for (one, other), value in zip(pairs.documents.tolist(), pairs.similarities.tolist(), strict=True):
            groups.add({str(one): [{str(other): value}]})
        found = pairs_of(groups)
        return len(found & wanted) / len(wanted), len(found & wanted) / len(found)

    for rounds in (1, -1):
        recall, precision = measure(20, rounds)
        assert recall >= 0.95, f"seed {seed}: recall {recall:.3f} of {len(wanted)} pairs"
        assert precision >= 0.98, f"seed {seed}: precision {precision:.3f}"
    assert measure(10, -1)[0] < 0.95  # Megatron-LM's bands: why they are not the default


def pairs_of(groups: Groups) -> set[tuple[str, ...]]:
    return {pair for _, names in groups.found() for pair in itertools.combinations(sorted(names), 2)}
