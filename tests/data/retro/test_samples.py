"""Samples whose chunks are queried."""

import numpy as np

from megads.data.retro.prepare import prepare
from megads.data.retro.samples import Queries, text_of
from tests.retro.corpus import CHUNK, SEQ, make_corpus
from tests.retro.reference import Reference


def test_chunks_and_documents_of_samples_equal_plain_loops(tmp_path):
    corpus = make_corpus(tmp_path / "c")
    project = prepare(tmp_path / "p", corpus.options())
    reference, splits = Reference(corpus, corpus.options()), Queries(project).splits
    for split, samples in splits.items():
        expected = reference.samples(split)
        assert samples.num_chunks == len(expected) * SEQ // CHUNK
        found = samples.chunks(0, samples.num_chunks)
        assert found == [row[i : i + CHUNK] for _, row, _ in expected for i in range(0, SEQ, CHUNK)]
        assert samples.chunks(3, 6) == found[3:6]
        for number, (file, _, documents) in enumerate(expected):
            for chunk in range(number * SEQ // CHUNK, (number + 1) * SEQ // CHUNK):
                assert samples.documents(chunk)[0] == file
                assert set(samples.documents(chunk)[1].tolist()) == documents


def test_a_split_that_is_not_asked_for_has_none(tmp_path):
    corpus = make_corpus(tmp_path / "c")
    splits = Queries(prepare(tmp_path / "p", corpus.options(eval_interval=0))).splits
    assert [samples is None for samples in splits.values()] == [False, True, True]


def test_text_has_no_ends_of_documents(tmp_path):
    project = prepare(tmp_path / "p", make_corpus(tmp_path / "c").options())
    assert text_of(np.array([97, 256, 98, 256]), project) == "ab"
