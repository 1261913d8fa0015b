"""Exact search against a sort of all distances, with equal distances and blocks of any size."""

import numpy as np
import pytest

from megads.retro.indexes.exact import ExactIndex, distances, rounding


def brute_force(queries, rows, count):
    """Return ids by distance, then by id, from a plain double loop."""
    out = np.full((len(queries), count), -1)
    for number, query in enumerate(queries.astype("f8")):
        order = sorted((float(((query - row) ** 2).sum()), i) for i, row in enumerate(rows.astype("f8")))
        ids = [i for _, i in order[:count]]
        out[number, : len(ids)] = ids
    return out


def draw(seed, rows, dim, spread):
    """Return queries and rows, a third of which are copies of others; some queries are rows."""
    rng = np.random.RandomState(seed)
    found = (rng.randn(rows, dim) * spread + 3).astype("f4")
    found[rng.rand(rows) < 0.33] = found[rng.randint(0, rows)]
    queries = np.concatenate([found[rng.randint(0, rows, 5)], rng.randn(6, dim).astype("f4")])
    return queries, found


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize(("seed", "spread"), [(0, 1.0), (1, 1e-3), (2, 100.0)])
def test_the_nearest_first_and_equal_ones_by_id(seed, spread, block):
    queries, rows = draw(seed, 83, 9, spread)

    def source():
        return ((start, rows[start : start + block]) for start in range(0, len(rows), block))

    for count in (1, 10, 83, 90):
        found = ExactIndex(source).search(queries, count)
        assert found.dtype == np.int64
        assert np.array_equal(found, brute_force(queries, rows, count))


def test_no_queries():
    assert ExactIndex(lambda: []).search(np.empty((0, 4), "f4"), 3).shape == (0, 3)


def test_more_queries_than_fit_at_once(monkeypatch):
    monkeypatch.setattr("megads.retro.indexes.exact._QUERIES", 2)
    monkeypatch.setattr("megads.retro.indexes.exact._NUMBERS", 8)
    queries, rows = draw(4, 20, 3, 1.0)
    assert np.array_equal(ExactIndex(lambda: [(0, rows)]).search(queries, 4), brute_force(queries, rows, 4))


def test_the_margin_covers_products_in_float32():
    rng = np.random.RandomState(0)
    for dim in (3, 64, 1024):
        first, second = (rng.randn(50, dim) * 10 + 30).astype("f4"), (rng.randn(40, dim) * 10 + 30).astype("f4")
        squares = [(each * each).sum(axis=1, dtype=np.float32) for each in (first, second)]
        near = squares[0][:, None] + squares[1][None] - 2.0 * (first @ second.T)
        which, place = np.nonzero(np.ones((50, 40)))
        exact = distances(first, second, which, place).reshape(50, 40)
        assert (np.abs(near - exact) <= rounding(dim) * (squares[0][:, None] + squares[1][None])).all()
