"""Indexes of faiss: Flat finds what numpy finds, others are trained, filled in blocks and searched."""

import sys

import numpy as np
import pytest

from megads.errors import ConfigError, DependencyError
from megads.retro.indexes import with_faiss
from megads.retro.indexes.exact import ExactIndex
from tests.retro.indexes.test_exact import draw


@pytest.mark.parametrize(("seed", "spread"), [(0, 1.0), (1, 1e-3), (2, 100.0)])
def test_flat_agrees_with_numpy_on_ids(seed, spread):
    queries, rows = draw(seed, 300, 16, spread)
    index = with_faiss.make_index("Flat", 16)
    with_faiss.add_rows(index, [(0, rows[:100]), (100, rows[100:])])
    for count in (1, 20, 200, 310):
        found = with_faiss.FaissIndex(index, 1, 1).search(queries, count)
        assert np.array_equal(found, ExactIndex(lambda: [(0, rows)]).search(queries, count))
        assert found.shape == (11, count)


def test_copies_of_a_row_beyond_the_margin_come_in_the_order_of_ids():
    rows = np.ones((400, 4), "f4")
    rows[0] = 5
    index = with_faiss.make_index("Flat", 4)
    index.add(rows)
    found = with_faiss.FaissIndex(index, 1, 1).search(rows[1:3], 10)
    assert found.tolist() == [[*range(1, 11)]] * 2


@pytest.mark.parametrize("string", ["IVF4,Flat", "OPQ4_8,IVF4,PQ4x4", "IVF8_HNSW4,PQ4x4"])
def test_an_index_filled_in_blocks_equals_one_filled_at_once(tmp_path, string):
    rng = np.random.RandomState(0)
    rows, queries = rng.randn(700, 8).astype("f4"), rng.randn(5, 8).astype("f4")
    empty = with_faiss.train_index(string, 8, rows)
    faiss = with_faiss.load_faiss()
    faiss.write_index(empty, str(tmp_path / "empty"))
    whole, parts = (faiss.read_index(str(tmp_path / "empty")) for _ in range(2))
    whole.add(rows)
    codes = [(start, with_faiss.encode(empty, rows[start : start + 300])) for start in range(0, 700, 300)]
    assert codes[0][1].shape == (300, with_faiss.code_columns(empty, 8))
    with_faiss.add_rows(parts, codes)
    assert parts.ntotal == 700
    expected = with_faiss.FaissIndex(whole, 4, 16).search(queries, 10)
    assert np.array_equal(with_faiss.FaissIndex(parts, 4, 16).search(queries, 10), expected)
    faiss.write_index(parts, str(tmp_path / "added"))
    assert np.array_equal(with_faiss.FaissIndex.read(tmp_path / "added", 4, 16).search(queries, 10), expected)


def test_lists_that_are_looked_at_and_ids_with_gaps():
    rows = np.random.RandomState(0).randn(700, 8).astype("f4")
    index = with_faiss.train_index("IVF8,Flat", 8, rows)
    with_faiss.add_rows(index, [(0, index.sa_encode(rows[:10])), (300, index.sa_encode(rows[300:310]))])
    narrow, wide = (with_faiss.FaissIndex(index, nprobe, 1).search(rows[300:301], 20) for nprobe in (1, 65536))
    assert narrow[0, 0] == wide[0, 0] == 300
    assert set(wide[0].tolist()) == {*range(10), *range(300, 310)}
    assert (narrow[0] == -1).any()
    assert (narrow[0][np.argmax(narrow[0] == -1) :] == -1).all()


def test_what_faiss_cannot_do_is_one_line(monkeypatch):
    with pytest.raises(ConfigError, match="--retro-index-str Nonsense: faiss does not understand it for 8 numbers"):
        with_faiss.make_index("Nonsense", 8)
    with pytest.raises(ConfigError, match=r"cannot be trained on 3 vectors .*raise --retro-index-ntrain"):
        with_faiss.train_index("IVF8,Flat", 8, np.zeros((3, 8), "f4"))
    flat = with_faiss.make_index("Flat", 8)
    with pytest.raises(ConfigError, match="needs an index with inverted lists"):
        with_faiss.add_rows(flat, [(0, np.zeros((3, 8), "f4")), (5, np.zeros((3, 8), "f4"))])
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(DependencyError, match=r"pip install -e '\.\[retro\]' .*--retro-index-type exact"):
        with_faiss.load_faiss()


def test_a_graph_is_the_same_every_time(tmp_path):
    rows = np.random.RandomState(0).randn(700, 8).astype("f4")
    made = []
    for name in ("a", "b"):
        index = with_faiss.make_index("HNSW8", 8)
        with_faiss.add_rows(index, [(0, rows[:300]), (300, rows[300:])])
        with_faiss.load_faiss().write_index(index, str(tmp_path / name))
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    assert with_faiss.FaissIndex(index, 1, 16).search(rows[:3], 1)[:, 0].tolist() == [0, 1, 2]
