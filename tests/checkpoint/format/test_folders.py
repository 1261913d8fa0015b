"""Which checkpoints there are, and which is taken."""

import os

import numpy as np
import pytest

from megads.checkpoint.format.commit import commit, part_of
from megads.checkpoint.format.folders import (
    candidates,
    checkpoints_in,
    iteration_of,
    list_checkpoints,
    list_unfinished,
    remove_unfinished,
)
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.errors import CheckpointError
from tests.checkpoint.made import TENSORS, find_latest, make, numbers_of


def cut_short(path):
    os.truncate(path / "rank-00000.safetensors", 3)


def test_no_folder_means_a_new_run(tmp_path):
    assert find_latest(tmp_path / "nothing") is None
    (tmp_path / "file").touch()
    assert list_checkpoints(tmp_path / "file") == []


def test_the_newest_is_taken_by_number_not_by_name(tmp_path):
    make(tmp_path, 9_999_999)
    newest = make(tmp_path, 10_000_000)
    assert find_latest(tmp_path).path == newest
    assert len(list_checkpoints(tmp_path)) == 2
    assert iteration_of(newest) == 10_000_000
    assert iteration_of(tmp_path / "iter_12") == iteration_of(tmp_path / "iter_0000012x") == -1


def test_a_half_written_checkpoint_is_not_one(tmp_path):
    sound = make(tmp_path, 50)
    half = tmp_path / "iter_0000100.tmp"
    half.mkdir()
    (half / "rank-00000.safetensors").touch()
    (tmp_path / "iter_0000150.gone.tmp").write_text("a file")
    (tmp_path / "iter_0000200.tmp").symlink_to(sound)
    assert find_latest(tmp_path).path == sound
    assert len(list_unfinished(tmp_path)) == 3
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == [sound.name]
    assert find_latest(tmp_path).path == sound


def test_what_can_not_be_removed_is_told(tmp_path, monkeypatch):
    (tmp_path / "iter_0000100.tmp").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(CheckpointError, match=r"iter_0000100\.tmp: Permission denied; remove .*another CKPT_DIR"):
        remove_unfinished(tmp_path)


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path):
    sound = make(tmp_path, 50)
    cut_short(make(tmp_path, 100))
    (tmp_path / "iter_0000150").mkdir()
    found = find_latest(tmp_path)
    assert found.path == sound
    assert "iter_0000150: has no manifest.json" in found.broken[0]
    assert "iter_0000100" in found.broken[1]
    assert "3 bytes, the manifest says" in found.broken[1]


def test_older_ones_follow(tmp_path):
    paths = [make(tmp_path, iteration) for iteration in (50, 100, 150)]
    assert [found.path for found in candidates(list_checkpoints(tmp_path))] == paths[::-1]


def test_when_all_are_damaged_the_run_does_not_start_over(tmp_path):
    cut_short(make(tmp_path, 50))
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read .*RUN_NAME"):
        find_latest(tmp_path)


def test_a_run_its_folder_of_checkpoints_and_a_checkpoint_mean_the_same(tmp_path):
    path = make(tmp_path / "run" / "checkpoints", 50)
    for place in (tmp_path / "run", path.parent, path):
        assert checkpoints_in(place) == [path]
    assert checkpoints_in(tmp_path) == []
    (path / "manifest.json").unlink()
    assert checkpoints_in(path) == [path], "a checkpoint without a manifest is a damaged one, not an empty folder"
    copy = make(tmp_path, 60).rename(tmp_path / "best")
    assert checkpoints_in(copy) == [copy]


def test_a_checkpoint_takes_the_place_of_one_of_its_name(tmp_path):
    path = make(tmp_path, 50)
    newer = numbers_of(TENSORS, seed=1)
    assert make(tmp_path, 50, numbers=newer) == path
    with Reader(path) as reader:
        assert np.array_equal(reader.whole("final_norm.weight"), newer["weight"]["final_norm.weight"])
    assert os.listdir(tmp_path) == [path.name]


STEPS = ("replace", "fsync", "open", "rmdir", "unlink", "mkdir", "pwrite")
"""Functions of the os module that change what is on disk."""


def save_and_die(folder, step):
    """Save in a process that ends for good when it is about to take its ``step``-th step; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = step

    def dies(function):
        def counted(*args, **more):
            nonlocal left
            left -= 1
            if not left:
                os._exit(9)
            return function(*args, **more)

        return counted

    try:
        for name in STEPS:
            setattr(os, name, dies(getattr(os, name)))
        make(folder, 50, numbers=numbers_of(SMALL, ("weight",), seed=1), tensors=SMALL, bounds=(), degree=1)
        os._exit(0)
    finally:
        os._exit(1)


SMALL = {"a": TENSORS["final_norm.weight"], "b": TENSORS["layers.0.attention.out.weight"]}


def test_a_save_that_dies_at_any_step_leaves_the_old_or_the_new_one(tmp_path):
    """Also when it was about to take the place of one of the same iteration."""
    old, new = (numbers_of(SMALL, ("weight",), seed)["weight"]["b"] for seed in (0, 1))
    survivors = []
    for step in range(1, 100):
        folder = tmp_path / str(step)
        make(folder, 50, numbers=numbers_of(SMALL, ("weight",)), tensors=SMALL, bounds=(), degree=1)
        code = save_and_die(folder, step)
        assert code in (0, 9)
        remove_unfinished(folder)
        found = find_latest(folder)
        assert os.listdir(folder) == ["iter_0000050"]
        with Reader(found.path) as reader:
            read = reader.whole("b")
        assert np.array_equal(read, old) or np.array_equal(read, new)
        survivors.append(np.array_equal(read, new))
        if code == 0:
            break
    assert code == 0, "the save has more steps than that"
    assert survivors == sorted(survivors), "once the new one is there it stays"
    assert survivors.count(True) > 3, "what comes after the rename was not met"


def test_a_rename_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = make(tmp_path, 50)
    before = read_manifest(path)
    plain = os.replace

    def fail(source, target):
        if str(source).endswith("50.tmp"):
            raise OSError(28, "No space left on device")
        plain(source, target)

    part_of(path).mkdir()
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        commit(path, before)
    assert read_manifest(path) == before
    assert not path.with_name("iter_0000050.old.tmp").exists()
