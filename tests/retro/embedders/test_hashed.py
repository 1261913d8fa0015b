"""Hashed words."""

import numpy as np

from megads.retro.embedders.hashed import DIM, HashedWords
from tests.retro.reference import embed


def test_vectors_are_those_of_a_plain_loop_and_do_not_depend_on_their_company():
    texts = ["", "   ", "a", "a b a b c", "Ab, c.\nd", "ein Baum " * 30]
    calls = []
    found = HashedWords().embed(texts, calls.append)
    assert found.dtype == np.float32
    assert found.shape == (6, DIM)
    assert sum(calls) == 6
    for text, row in zip(texts, found, strict=True):
        assert np.allclose(row, embed(text.encode()), rtol=0, atol=1e-7)
        assert row.tobytes() == HashedWords().embed([text])[0].tobytes()
    assert not found[:2].any()
    assert np.allclose((found[2:] ** 2).sum(axis=1), 1, atol=1e-6)


def test_words_in_common_make_texts_near():
    near, far = "the red fox sleeps", "a plane lands in rain"
    query, one, two = HashedWords().embed(["the red fox runs", near, far])
    assert ((query - one) ** 2).sum() < ((query - two) ** 2).sum()


def test_a_text_that_is_not_utf8_has_a_vector():
    assert HashedWords().embed(["\udcff"]).shape == (1, DIM)
