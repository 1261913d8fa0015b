"""How many samples have neighbours, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from megads.data.check import check_data
from megads.data.retro.project import Project
from megads.data.samples.retro.queried import (
    neighbors_fingerprint,
    neighbors_line,
    planned_samples_of,
    project_of,
    queried_samples,
    with_neighbors,
    with_planned_sizes,
)
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run
from tests.data.retro.made import EOD, make_project
from tests.data.samples.retro.test_samples import run_of


@pytest.fixture
def project(tmp_path):
    return Project.open(make_project(tmp_path / "p").folder)


def test_samples_that_may_have_been_queried(project):
    config = replace(project.config, train_samples=100, global_batch_size=4, eval_interval=10, eval_iters=3)
    assert planned_samples_of(config, "train") == (100,)
    assert planned_samples_of(config, "valid") == (12, (25 // 10 + 1) * 12)  # ours, and Megatron-core's
    assert planned_samples_of(config, "test") == (12,)
    assert planned_samples_of(replace(config, eval_interval=0), "valid") == (12,)


def test_a_project_that_is_not_complete(tmp_path):
    project = Project.open(make_project(tmp_path / "p", retro_gpt_train_samples=6).folder)
    assert queried_samples(project, "valid") == (2, 2)
    with pytest.raises(DataError, match=r"neighbours of 8 chunks of train samples, 12 expected by config.json; rerun"):
        queried_samples(project, "train")
    assert queried_samples(project, "train", verified=False) == (4, 6)  # the first 4 of 6
    with pytest.raises(DataError, match="no neighbours of split 'test'"):
        queried_samples(project, "test", verified=False)
    (project.folder / "query" / "train_0123" / "00-05.hdf5").unlink()
    with pytest.raises(DataError, match="no train sample has neighbours"):
        queried_samples(project, "train")


def test_more_samples_than_have_neighbours(tmp_path):
    folder = make_project(tmp_path / "p").folder
    run = run_of(folder, tmp_path, train_iters=2)
    assert with_planned_sizes(run, {"train": 4, "valid": 2, "test": 0}) == {"train": 4, "valid": 2, "test": 0}
    assert with_planned_sizes(run, {"train": 2, "valid": 1, "test": 0}) == {"train": 4, "valid": 2, "test": 0}
    with pytest.raises(DataError, match=r"train: 5 samples are needed, and 4 of .*/p have neighbours; lower TRAIN"):
        with_planned_sizes(run, {"train": 5, "valid": 0, "test": 0})
    with pytest.raises(DataError, match=r"valid: 3 samples are needed, and 2 of .*; lower EVAL_ITERS or GLOBAL_BATCH"):
        with_planned_sizes(run, {"train": 4, "valid": 3, "test": 0})
    cyclic = run_of(folder, tmp_path, train_iters=9, data={"retro_cyclic_train_iters": 9})
    assert with_planned_sizes(cyclic, {"train": 18, "valid": 3, "test": 0}) == {"train": 4, "valid": 2, "test": 0}
    with pytest.raises(ConfigError, match=r"RETRO_NUM_NEIGHBORS=4: .* has 3 neighbours of a chunk; use 3 or less"):
        project_of(run.model_copy(update={"model": run.model.model_copy(update={"retro_num_neighbors": 4})}))
    with pytest.raises(ConfigError, match="set RETRO_PROJECT_DIR to a folder that `megads retro build` has made"):
        project_of(run_of(folder, tmp_path, data={"retro_project_dir": ""}))


def test_other_runs_have_no_neighbours():
    run = make_run()
    assert with_planned_sizes(run, {"train": 4}) == {"train": 4}
    assert with_neighbors(run, {"train": None}, {"train": 4}) == {"train": None}
    assert neighbors_fingerprint(run) == ""


def test_a_line_for_the_banner_and_a_fingerprint(tmp_path):
    made = make_project(tmp_path / "p")
    run = run_of(made.folder, tmp_path, train_iters=2)
    assert neighbors_line(run) == (
        f"2 of 3 per chunk of 4 tokens, from {len(made.chunks)} chunks in {made.folder}; of 4 train samples"
    )
    assert neighbors_line(run_of(made.folder, tmp_path, train_iters=3)).endswith("4 train samples, which repeat")
    other = run.model_copy(update={"model": run.model.model_copy(update={"retro_num_neighbors": 1})})
    assert len({neighbors_fingerprint(run), neighbors_fingerprint(other)}) == 2
    assert neighbors_fingerprint(run) == neighbors_fingerprint(run_of(made.folder, tmp_path, train_iters=1))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_file_that_is_cut_short_ends_a_run_before_it_starts(tmp_path, split):
    made = make_project(tmp_path / "p", samples={"train": 10, "valid": 6})
    run = run_of(made.folder, tmp_path / "cache")
    check_data(run, EOD + 1)
    last = max((made.folder / "query").glob(f"{split}*/*.hdf5"))
    os.truncate(last, 700)
    with pytest.raises(DataError, match=rf"{last.name}: cannot be read as HDF5 .*rerun `megads retro build`"):
        check_data(run, EOD + 1)
