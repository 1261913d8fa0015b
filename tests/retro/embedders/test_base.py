"""The embedder that config.json names."""

import pytest

from megads.data.retro.prepare import prepare
from megads.data.retro.project import Project
from megads.errors import ConfigError
from megads.retro.embedders.base import make_embedder
from megads.retro.embedders.hashed import HashedWords
from tests.data.retro.made import make_project
from tests.retro.corpus import make_corpus


def test_hashed_is_the_default(tmp_path):
    project = prepare(tmp_path / "p", make_corpus(tmp_path / "c").options())
    assert isinstance(make_embedder(project), HashedWords)


def test_an_unknown_one_is_one_line(tmp_path):
    own = {"embedder": "x", "bert_max_chunk_length": 8, "bert_batch_size": 8}
    with pytest.raises(ConfigError, match="embedder 'x' is unknown; use hashed, huggingface or megads"):
        make_embedder(Project.open(make_project(tmp_path / "p", megads=own).folder))
