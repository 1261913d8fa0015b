"""megads data index builds what training then finds."""

from __future__ import annotations

import os

import pytest

from tests.data.factory import write_dataset, write_list


@pytest.fixture
def files(tmp_path):
    write_dataset(tmp_path, [40] * 30, 200, 0, "a")
    write_dataset(tmp_path, [40] * 30, 200, 1, "b")
    write_dataset(tmp_path, [40] * 9, 200, 2, "held")
    write_list(tmp_path / "list", "3 a x", "1 b y")
    write_list(tmp_path / "valid", "1 held z")
    return tmp_path


SETTINGS = {
    **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NGPU_PER_HOST": "1", "SEQ": "16", "TRAIN_ITERS": "3"},
    **{"GLOBAL_BATCH": "8", "MICRO_BATCH": "4", "EVAL_ITERS": "1", "TOKENIZER_TYPE": "NullTokenizer"},
    **{"VOCAB_SIZE": "200", "DATA_FILE_LIST": "list", "VALID_DATA_FILE_LIST": "valid"},
}


def _folder(tmp_path):
    return tmp_path / "cache/index"


def test_training_finds_what_was_built_before(megads, files):
    settings = {**SETTINGS, "DATA_CACHE_PATH": "cache"}
    built = megads("data", "index", "--workers", "2", **settings)
    assert built.returncode == 0, built.stderr
    # Two files, one list of its own, the orders of three corpora (two of one size) and a blend.
    assert "indices, " in built.stdout
    before = {path: path.stat().st_mtime_ns for path in _folder(files).iterdir()}
    assert sorted(path.name.split("-")[0] for path in before).count("gpt") == 3
    again = megads("data", "index", **settings)
    assert again.returncode == 0
    assert again.stdout.startswith("nothing to do: ")
    trained = megads("train", **settings)
    assert trained.returncode == 0, trained.stderr
    assert {path: path.stat().st_mtime_ns for path in _folder(files).iterdir()} == before


def test_wrong_data_are_one_line(megads, files):
    os.truncate(files / "a.bin", 100)
    failed = megads("data", "index", **SETTINGS, DATA_CACHE_PATH="cache")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "a.bin: has 100 bytes, expected 2400" in failed.stderr


def test_nodes_of_a_job_are_taken_into_account(megads, files):
    """The samples follow from the ranks when GLOBAL_BATCH does not say them."""
    settings = {**SETTINGS, "DATA_CACHE_PATH": "cache", "TRAIN_ITERS": "40"}
    settings |= {"GLOBAL_BATCH": "", "GRAD_ACC_STEPS": "1"}
    sizes = []
    for nodes in ("1", "2"):
        built = megads("data", "index", "--nodes", nodes, **settings)
        assert built.returncode == 0, built.stderr
        sizes.append(built.stdout)
    assert "blend of 2, 160 samples" in sizes[0]
    assert "blend of 2, 320 samples" in sizes[1]
