"""Advice after a failed read or write: space where a disk is full, and not where it fails."""

from __future__ import annotations

import errno
import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.checkpoint.format.atomic_folder import CheckpointError
from megads.config.run_folder import write_whole
from megads.data.check import _disk
from megads.data.samples.index_cache.cache import Cache
from megads.errors import ConfigError, DataError
from megads.storage.open_file import write_cure
from megads.train import evaluate as evaluation
from megads.train import resume


@pytest.mark.parametrize(("number", "space"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_space_is_advised_where_it_helps(tmp_path, monkeypatch, number, space):
    def fail(*names: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="use another RUN_DIR") as error:
        write_whole(tmp_path / "x", "")
    assert ("free some space" in str(error.value)) == space
    assert ("its disk or the path to it fails" in str(error.value)) == (number == errno.EIO)
    assert write_cure(OSError(errno.EACCES, "x"), "use another folder") == "use another folder"


def test_a_cache_where_no_files_are_kept_is_called_that(tmp_path):
    with pytest.raises(DataError, match="/proc is on a temporary file system; set DATA_CACHE_PATH to a disk"):
        _disk(Cache(type(tmp_path)("/proc/x")))
    assert _disk(Cache(tmp_path / "x"))[1] > 0


def test_a_long_validation_says_how_far_it_is(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    caplog.set_level(logging.INFO, "megads")
    monkeypatch.setattr(evaluation, "FIRST_S", 0.0)
    engine: Any = SimpleNamespace(eval_losses=lambda batches: torch.tensor([[2.0, 1.0]]))
    found = evaluation.evaluate(engine, [[torch.zeros(1, 2)]] * 3, torch.device("cpu"), total=3)
    assert found is not None
    assert found.loss == 2.0
    assert caplog.messages == ["validation: 1 of 3, ETA 0s"]  # the next is due in half a minute


def test_a_checkpoint_is_read_once_more_before_it_is_called_damaged(monkeypatch):
    answers = [CheckpointError("a bit"), None]

    def read(*given: object) -> None:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(resume, "_read", read)
    monkeypatch.setattr(resume, "_first_problem", lambda mine, groups, device: mine)
    training: Any = SimpleNamespace(groups=None, device=None)
    found: Any = SimpleNamespace(path="x")
    assert resume._try_twice(training, found, None) == ""
    answers[:] = [CheckpointError("a bit"), CheckpointError("a bit still")]
    assert resume._try_twice(training, found, None) == "a bit still"
