"""Shingles and similarities against Python's own sets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from megads.data.corpus.duplicates.shingles import KINDS, codes_of, count_of, hashes_of, similarity

ALPHABETS = {
    "few letters": "ab",
    "latin": "abcdefghijklmnopqrstuvwxyz ,.",
    "beyond 16 bits": "ab\u2019\U0001f600\U0010ffff\u00e9 ",
    "more than fit into 64 bits": "".join(chr(0x4E00 + each) for each in range(9000)),
}


def sets(text: str) -> set[str]:
    return {text[at : at + 5] for at in range(len(text) - 5)}


def plain(one: str, other: str, kind: str) -> float:
    first, second = sets(one), sets(other)
    if not first or not second:
        return 0.0
    sizes = {"union": len(first | second), "min": min(len(first), len(second)), "max": max(len(first), len(second))}
    return len(first & second) / sizes[kind]


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("kind", KINDS)
def test_similarity_is_that_of_python_sets(alphabet, kind):
    draw = random.Random(f"{alphabet} {kind}")
    letters = ALPHABETS[alphabet]
    for length in (0, 4, 5, 6, 7, 60, 20_000 if len(letters) > 7131 else 700):
        one = "".join(draw.choice(letters) for _ in range(length))
        cut = draw.randint(0, length)
        other = one[:cut] + "".join(draw.choice(letters) for _ in range(9)) + one[draw.randint(0, length) :]
        assert similarity(codes_of(one), codes_of(other), kind) == plain(one, other, kind), (one[:99], other[:99])


def test_many_symbols_are_compared_exactly():
    letters = [chr(0x4E00 + each) for each in range(9000)]
    one = "".join(letters)
    other = "".join([*letters[:6000], "x", *letters[6000:]])
    found = similarity(codes_of(one), codes_of(other))
    assert found == plain(one, other, "union")
    assert 0.99 < found < 1


def test_a_surrogate_is_a_character_of_its_own():
    assert codes_of("a\ud800").tolist() == [97, 0xD800]


@pytest.mark.parametrize("length", [0, 5, 6, 300])
def test_hashes_depend_on_the_five_characters_and_their_order(length):
    draw = random.Random(length)
    text = "".join(draw.choice("abc\u2019") for _ in range(length))
    codes = codes_of(text)
    hashes = hashes_of(codes).tolist()
    assert len(hashes) == count_of(codes) == max(0, length - 5)
    named = {text[at : at + 5]: value for at, value in enumerate(hashes)}
    assert hashes == [named[text[at : at + 5]] for at in range(len(hashes))]
    assert len(set(named.values())) == len(named)


def test_hashes_of_many_shingles_are_spread_evenly():
    draw = np.random.default_rng(0)
    hashes = np.unique(hashes_of(draw.integers(97, 123, 200_000).astype(np.uint32)))
    counts = np.bincount(hashes >> 24, minlength=256)
    expected = len(hashes) / 256
    assert abs(counts - expected).max() < 6 * expected**0.5
