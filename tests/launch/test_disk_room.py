"""What the checkpoints of a run take, and whether it fits."""

import shutil
from types import SimpleNamespace

import pytest

from megads.config.memory import count_parameters
from megads.launch.disk_room import disk_room
from tests.checkpoint.faked import derived

LONG = {"TRAIN_ITERS": "200", "SAVE_INTERVAL": "50"}


@pytest.mark.parametrize(
    ("env", "kept", "at_once"),
    [
        ({}, 4, 4),
        ({"SAVE_INTERVAL": "0"}, 1, 1),
        ({"SAVE_INTERVAL": "60"}, 4, 4),
        ({"CKPT_KEEP": "2"}, 2, 3),
        ({"CKPT_KEEP": "1", "CKPT_KEEP_EVERY": "100"}, 2, 3),
    ],
)
def test_how_many_are_kept(tmp_path, env, kept, at_once):
    room = disk_room(derived({**LONG, **env}), tmp_path / "not/there/yet")
    assert (room.kept, room.at_once) == (kept, at_once)
    assert room.free > 0


def test_a_run_that_does_not_fit_is_named_with_what_would(tmp_path, monkeypatch):
    run = derived(LONG)
    each = 12 * count_parameters(run.model)  # float32 weights and two moments
    for free, count in ((4 * each, 0), (4 * each - 1, 1)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        room = disk_room(run, tmp_path)
        assert room.each == each
        found = list(room.warnings(tmp_path))
        assert len(found) == count
    assert "set CKPT_KEEP=2, a larger SAVE_INTERVAL, or CKPT_DIR on another disk" in found[0]
    assert not list(disk_room(run, tmp_path, begun=100).warnings(tmp_path))  # half of them are there
