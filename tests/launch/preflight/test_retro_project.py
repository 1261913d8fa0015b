"""A run takes data, seed, split and lengths from its Retro project, and what the user says otherwise is one line."""

from __future__ import annotations

import pytest

from megads.config.sources.resolve import resolve
from megads.data.retro.project import Project
from megads.data.samples.retro.queried import data_path_of
from megads.errors import ConfigError, DataError
from megads.launch.preflight.retro_project import with_project
from tests.data.factory import write_dataset
from tests.data.retro.made import EOD, make_project


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("retro") / "my project").folder


def resolved(folder, **env):
    return with_project(
        resolve(env={"MODEL_FAMILY": "retro", "RETRO_PROJECT_DIR": str(folder), **env}, machine="generic")
    )


def test_what_the_project_says(folder):
    found = resolved(folder, SEED="7")
    run, project = found.run, Project.open(folder)
    assert (run.model.seq_length, run.model.retro_chunk_length, run.model.vocab_size) == (8, 4, EOD + 1)
    assert (run.data.path, run.data.split) == (data_path_of(project), "100,0,0")
    assert (run.data.tokenizer_type, run.data.tokenizer_model) == ("NullTokenizer", "")
    assert (run.train.seed, run.train.seed_of_data) == (7, 1234)
    assert (run.train.train_samples, run.train.train_tokens, run.train.train_iters) == (4, 0, 0)
    assert str(found.origins["data.path"]) == f"derived the Retro project {folder}"
    assert resolved(folder, TRAIN_ITERS="3").run.train.train_iters == 3


def test_the_same_said_twice_is_fine(folder):
    path = data_path_of(Project.open(folder))
    same = resolved(
        folder, SEQ="8", SPLIT="1", DATA_PATH=path.replace("1.0 ", "7 "), DATA_SEED="1234", RETRO_CHUNK_LENGTH="4"
    )
    assert same.run.data.path == path


def test_other_runs_are_not_changed(folder):
    given = resolve(env={"RETRO_PROJECT_DIR": str(folder)}, machine="generic")
    assert with_project(given) is given


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SEQ", "16", "SEQ=16 (env SEQ): the samples of"),
        ("RETRO_CHUNK_LENGTH", "8", "RETRO_CHUNK_LENGTH=8 (env RETRO_CHUNK_LENGTH): the samples of"),
        ("DATA_SEED", "5", "DATA_SEED=5 (env DATA_SEED): the samples of"),
        ("SPLIT", "90,10,0", "SPLIT=90,10,0 (env SPLIT): the samples of"),
        ("LAST_EPOCH_CUTOFF", "0.5", "LAST_EPOCH_CUTOFF=0.5 (env LAST_EPOCH_CUTOFF): the samples of"),
        ("SPLIT_RULE", "legacy", "SPLIT_RULE=legacy (env SPLIT_RULE): the samples of"),
        ("VOCAB_SIZE", "101", "VOCAB_SIZE=101 (env VOCAB_SIZE): the samples of"),
        ("DATA_PATH", "nothing", "DATA_PATH=nothing (env DATA_PATH): the samples of"),
        ("DATA_FILE_LIST", "list.txt", "DATA_FILE_LIST=list.txt (env DATA_FILE_LIST): a run on"),
        ("VAL_SPLIT", "20", "VAL_SPLIT=20.0 (env VAL_SPLIT): "),
        ("VALID_DATA_PATH", "x", "VALID_DATA_PATH=x (env VALID_DATA_PATH): a run on"),
        ("TOKENIZER_TYPE", "GPT2BPETokenizer", "TOKENIZER_TYPE=GPT2BPETokenizer (env TOKENIZER_TYPE): the token files"),
    ],
)
def test_what_contradicts_the_project_is_one_line(folder, name, value, told):
    with pytest.raises(ConfigError) as error:
        resolved(folder, **{name: value})
    assert str(error.value).startswith(told)
    assert str(folder) in str(error.value)


def test_another_file_or_other_weights_are_other_samples(folder, tmp_path):
    write_dataset(tmp_path, [5], name="file0")
    first, second = (f"{folder}/data/file{number}" for number in (0, 1))
    for path in (f'1 {tmp_path}/file0 1 "{second}"', f'1 "{first}" 2 "{second}"', f'1 "{second}" 1 "{first}"'):
        with pytest.raises(ConfigError, match=r"were made with DATA_PATH=1\.0 "):
            resolved(folder, DATA_PATH=path)


def test_a_folder_that_is_no_project(tmp_path):
    with pytest.raises(DataError, match="a Retro project is made by `megads retro build`"):
        resolved(tmp_path)
