"""The moment in which a checkpoint becomes visible."""

from __future__ import annotations

import os

import numpy as np
import pytest

from megads.checkpoint.format.commit import commit, part_of
from megads.checkpoint.format.folders import remove_unfinished
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from tests.checkpoint.made import TENSORS, find_latest, make, numbers_of


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
