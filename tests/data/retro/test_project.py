"""A project's folder: config.json, and neighbours of the chunks of samples."""

import json
from pathlib import Path

import numpy as np
import pytest

from megads.data.retro.project import Project, read_config, resolved, write_config
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import DataError
from tests.data.retro.made import EOD, make_project


def test_neighbours_come_from_all_blocks(tmp_path):
    made = make_project(tmp_path / "p")
    project = Project.open(made.folder)
    assert (project.chunks_per_sample, project.eod, project.num_neighbors) == (2, EOD, 3)
    for split, rows in made.neighbors.items():
        assert project.num_neighbor_rows(split) == len(rows)
        for start in range(len(rows)):
            assert np.array_equal(project.neighbors(split, start), rows[start])
            for stop in range(start + 1, len(rows) + 1):
                assert np.array_equal(project.neighbors(split, start, stop), rows[start:stop])
    assert (made.neighbors["train"] == -1).any()
    assert project.neighbors("train", 0).dtype == np.int64


def test_chunks_that_were_not_queried_are_one_line(tmp_path):
    project = Project.open(make_project(tmp_path / "p").folder)
    with pytest.raises(DataError, match=r"chunks 7\.\.9 were not queried, neighbours of 8 are there"):
        project.neighbors("train", 7, 9)
    with pytest.raises(DataError, match="no neighbours of split 'test'; run `megads retro query`"):
        project.neighbors("test", 0)
    (project.folder / "query" / "train_0123" / "05-08.hdf5").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"chunks 6\.\.7 were not queried, neighbours of 5"):
        Project.open(project.folder).neighbors("train", 6)


def test_neighbours_end_at_the_first_missing_file(tmp_path):
    made = make_project(tmp_path / "p", samples={"train": 60})  # names have four digits, those of fewer rows three
    (made.folder / "query" / "train_0123" / "0010-0015.hdf5").unlink()
    project = Project.open(made.folder)
    assert project.num_neighbor_rows("train") == 10
    assert np.array_equal(project.neighbors("train", 0, 10), made.neighbors["train"][:10])
    with pytest.raises(DataError, match=r"chunks 10\.\.11 were not queried, neighbours of 10"):
        project.neighbors("train", 10)


def test_many_blocks_do_not_stay_open(tmp_path):
    made = make_project(tmp_path / "p", samples={"train": 40}, block_size=2)
    project = Project.open(made.folder)
    assert np.array_equal(project.neighbors("train", 0, 80), made.neighbors["train"])
    assert len(project._tables) == 16


def test_config_is_written_as_megatron_reads_it(tmp_path):
    made = make_project(tmp_path / "p")
    before = json.loads((made.folder / "config.json").read_text())
    config = read_config(made.folder)
    assert config.data_path == ((1.0, "file0"), (1.0, "file1"))
    write_config(made.folder, config)
    assert json.loads((made.folder / "config.json").read_text()) == before
    assert read_config(made.folder) == config


def test_paths_of_tokenizers_start_at_the_folder(tmp_path):
    spec = resolved(TokenizerSpec("GPT2BPETokenizer", vocab_file="v.json", merge_file="/m.txt"), tmp_path)
    assert (spec.model, Path(spec.vocab_file), spec.merge_file) == ("", tmp_path / "v.json", "/m.txt")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not the config.json of a Retro project"),
        ("[]", "not the config.json of a Retro project"),
        ("{}", "key 'data_path' is missing"),
        ({"retro_gpt_seq_length": 9}, "seq_length 9 is not a multiple of chunk_length 4"),
        ({"retro_block_size": 0}, "block_size is 0, expected 1 or more"),
        ({"retro_gpt_data_path": ["1.0"]}, "not the config.json"),
        ({"retro_gpt_train_samples": None}, "not the config.json"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path, content, problem):
    folder = tmp_path / "p"
    make_project(folder, **(content if isinstance(content, dict) else {}))
    if isinstance(content, str):
        (folder / "config.json").write_text(content)
    with pytest.raises(DataError, match=problem) as error:
        Project.open(folder)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_project_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no such file; a Retro project is made by `megads retro build`"):
        Project.open(tmp_path)
