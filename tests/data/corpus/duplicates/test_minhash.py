"""Signatures against datasketch, called as its documentation shows."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from datasketch import MinHash

from megads.data.corpus.duplicates.minhash import Signer, packed, unpacked
from megads.data.corpus.duplicates.shingles import codes_of, hashes_of, similarity
from megads.errors import DependencyError
from tests.data.corpus.made import edited, text


@pytest.mark.parametrize(("length", "num_seeds", "seed"), [(0, 4, 0), (5, 4, 0), (6, 100, 1234), (2000, 100, 1234)])
def test_a_signature_is_that_of_the_library_one_shingle_at_a_time(length, num_seeds, seed):
    given = text(random.Random(length), 40)[:length]
    wanted = MinHash(num_perm=num_seeds, seed=seed, scheme="affine32", hashfunc=int)
    for value in hashes_of(codes_of(given)).tolist():
        wanted.update(value)
    found = Signer(num_seeds, seed).sign(given)
    assert found.dtype == np.uint32
    assert found.tolist() == wanted.hashvalues.tolist()


def test_equal_numbers_estimate_the_similarity():
    draw = random.Random(5)
    signer = Signer(2000, 1)
    one = text(draw, 30)
    for share in (0.02, 0.1, 0.3):
        other = edited(draw, one, share)
        found = (signer.sign(one) == signer.sign(other)).mean()
        assert found == pytest.approx(similarity(codes_of(one), codes_of(other)), abs=0.05)


def test_a_signature_survives_being_text():
    signature = Signer(7, 3).sign("some text that is long enough")
    assert unpacked(packed(signature), 7).tolist() == signature.tolist()


@pytest.mark.parametrize("bad", ["", "AAAA", "!", "AAAAAAA=" * 9, "\u20ac"])
def test_what_is_no_signature_is_refused(bad):
    with pytest.raises(ValueError, match="is not a signature of 7 numbers"):
        unpacked(bad, 7)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(DependencyError, match=r"find-duplicates needs datasketch.*pip install -e '\.\[corpus\]'"):
        Signer(4, 0)
