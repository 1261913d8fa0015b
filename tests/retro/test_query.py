"""Own documents are dropped, what is missing is -1; test_run.py compares whole projects with plain loops."""

import functools

import numpy as np
import pytest

from megads.data.retro.project import Project
from megads.errors import DataError
from megads.retro.embedders.hashed import HashedWords
from megads.retro.query import Searcher
from tests.retro.corpus import make_corpus
from tests.retro.reference import Reference
from tests.retro.test_index import ONE, build


@pytest.mark.parametrize("seed", range(3))
def test_drawn_corpora_equal_plain_loops(tmp_path, seed):
    corpus = make_corpus(tmp_path / "c", seed + 20)
    rng = np.random.RandomState(seed)
    query = int(rng.randint(1, 40))
    more = {
        "num_neighbors_query": query,
        "num_neighbors": int(rng.randint(1, query + 1)),
        "seed": seed,
        "split": "5,2,2",
    }
    project = build(tmp_path / "p", corpus, ONE, **more)
    searcher = Searcher(project, functools.cache(HashedWords))
    reference = Reference(corpus, corpus.options(**more))
    for split in ("train", "valid", "test"):
        found = np.concatenate([searcher.find(split, block, lambda rows: None) for block in searcher.blocks(split)])
        assert np.array_equal(found, reference.neighbors(split))


def test_no_neighbour_is_of_a_document_of_the_sample(tmp_path):
    corpus = make_corpus(tmp_path / "c")
    project = build(tmp_path / "p", corpus, ONE, num_neighbors_query=60, num_neighbors=60)
    searcher = Searcher(project, functools.cache(HashedWords))
    documents, samples = project.database().documents(), searcher.queries.splits["train"]
    dropped = 0
    for block in searcher.blocks("train"):
        for row, ids in enumerate(searcher.find("train", block, lambda rows: None), start=block.start):
            file, own = samples.documents(row)
            kept = ids[ids >= 0]
            assert not ((documents[kept, 0] == file) & np.isin(documents[kept, 1], own)).any()
            assert (ids[len(kept) :] == -1).all()
            dropped += 60 - len(kept)
    assert dropped


def test_a_split_without_samples_has_no_blocks(tmp_path):
    project = build(tmp_path / "p", make_corpus(tmp_path / "c"), ONE, eval_iters=0)
    searcher = Searcher(Project.open(project.folder), functools.cache(HashedWords))
    assert searcher.blocks("valid") == []
    with pytest.raises(DataError, match="no samples of split 'valid'"):
        searcher.find("valid", searcher.blocks("train")[0], lambda rows: None)
