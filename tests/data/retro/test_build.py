"""The database's counts; tests/retro/test_run.py compares its files with plain loops."""

import io

import pytest

from megads.data.retro.build import build_database, read_infos
from megads.data.retro.crew import Crew
from megads.data.retro.prepare import prepare
from megads.errors import DataError
from tests.retro.corpus import make_corpus


def _build(folder, corpus, **more):
    return build_database(prepare(folder, corpus.options(**more)), Crew(0, 1, folder, io.StringIO()))


def test_counts_are_returned_and_read_back(tmp_path):
    infos = _build(tmp_path / "p", make_corpus(tmp_path / "c"))
    assert read_infos(tmp_path / "p") == infos
    assert [info.n_docs for info in infos] == [18, 23]
    for info in infos:
        assert info.count("sampled") == info.count("train") == info.n_chunks_train
        assert info.count("train") + info.count("valid") == info.n_chunks


def test_more_samples_than_chunks_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"--retro-index-ntrain 400: 120 of them fall to a, which has \d+ chunks"):
        _build(tmp_path / "p", make_corpus(tmp_path / "c"), ntrain=400)


def test_counts_that_are_missing_or_damaged_are_one_line(tmp_path):
    with pytest.raises(DataError, match="run `megads retro build` first"):
        read_infos(tmp_path)
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "indexed_dataset_infos.json").write_text('[{"ratio": 1}]')
    with pytest.raises(DataError, match=r"damaged .*remove it and rerun"):
        read_infos(tmp_path)
