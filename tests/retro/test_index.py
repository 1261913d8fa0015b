"""The files of an index: fractions, checksums, what stays; tests/retro/test_run.py compares its neighbours."""

import functools
import io
import os

import numpy as np
import pytest

from megads.data.retro.project import Project
from megads.errors import DataError
from megads.retro import index
from megads.retro.embedders.hashed import HashedWords
from megads.retro.index import open_index, problem_of_index
from megads.retro.indexes.base import Places, code_blocks, training_blocks, vectors
from megads.retro.query import nearest
from megads.retro.run import How, run_steps
from tests.retro.corpus import make_corpus
from tests.retro.indexes.test_exact import brute_force
from tests.retro.reference import Reference

ONE = How(workers=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def build(folder, corpus, how=ONE, **more):
    run_steps(folder, corpus.options(**more), ("db-build", "index-train", "index-add"), how, io.StringIO())
    return Project.open(folder)


def test_a_share_of_each_block_is_added(tmp_path, corpus):
    project = build(tmp_path / "p", corpus, add_load_fraction=0.5)
    rows = Reference(corpus, corpus.options()).vectors()
    kept = [i for block in code_blocks(project) for i in range(block.start, block.start + len(block) // 2)]
    expected = brute_force(rows[:9], rows[kept], 5)
    found = open_index(project, 256).search(rows[:9], 5)
    assert found.tolist() == [[kept[i] for i in row] for row in expected]


def test_vectors_that_do_not_fit_in_memory_are_read_again(tmp_path, corpus, monkeypatch):
    project = build(tmp_path / "p", corpus)
    rows = Reference(corpus, corpus.options()).vectors()
    expected = open_index(project, 256).search(rows, 7)
    monkeypatch.setattr(index, "IN_MEMORY_BYTES", 100)
    assert np.array_equal(open_index(project, 256).search(rows, 7), expected)
    assert np.array_equal(expected, brute_force(rows, rows, 7))


def test_what_an_index_of_faiss_leaves(tmp_path, corpus):
    more = {"index_str": "IVF4,Flat", "train_load_fraction": 0.9}
    project = build(tmp_path / "p", corpus, **more)
    places = Places.of(project)
    assert places.empty.name == "empty_0.900.faissindex"
    assert places.added.name == "added_0.900_1.000.faissindex"
    assert (places.codes.is_dir(), places.training.is_dir()) == (True, False)
    other = build(tmp_path / "q", corpus, How(workers=1, keep_vectors=True, keep_codes=False), **more)
    assert Places.of(other).added.read_bytes() == places.added.read_bytes()
    assert (Places.of(other).codes.exists(), Places.of(other).training.is_dir()) == (False, True)
    rows = np.concatenate([part for _, part in vectors(training_blocks(other), 1.0, 256)])
    assert np.allclose(rows, Reference(corpus, corpus.options()).vectors(), atol=1e-7)


def test_a_damaged_index_is_found_and_made_again(tmp_path, corpus):
    project = build(tmp_path / "p", corpus, index_type="faiss-base")
    path = Places.of(project).added
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert problem_of_index(path) == "differs from its checksum"
    with pytest.raises(DataError, match="differs from its checksum; run `megads retro add` first"):
        open_index(project, 256)
    build(tmp_path / "p", corpus)
    assert path.read_bytes() == before
    os.unlink(f"{path}.json")  # as Megatron leaves it
    assert problem_of_index(path) == ""
    path.write_bytes(b"")
    assert problem_of_index(path) == "is empty"


def test_the_nearest_chunks_of_any_tokens(tmp_path, corpus):
    project = build(tmp_path / "p", corpus)
    find = nearest(project, functools.cache(HashedWords))
    chunks = [project.database().chunk(i).tolist() for i in range(6)]
    rows = Reference(corpus, corpus.options()).vectors()
    assert np.array_equal(find(chunks, 4), brute_force(rows[:6], rows, 4))
    assert find(chunks, 400)[0, -1] == -1
