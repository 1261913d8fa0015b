"""What the checkpoints of a run take, and whether it fits."""

import itertools
import shutil
from types import SimpleNamespace

import pytest

from megads.launch.preflight.disk_space import disk_room
from megads.plan.memory import count_parameters
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


@pytest.mark.parametrize("begun", [0, 7, 24, 30])
@pytest.mark.parametrize("keep", [0, 1, 3, 50])
def test_the_count_is_that_of_the_steps_one_by_one(tmp_path, keep, begun):
    for last, every, rarely in itertools.product((24, 25, 30), (0, 1, 4, 7, 40), (0, 4, 6, 10)):
        run = derived({"TRAIN_ITERS": f"{last}", "SAVE_INTERVAL": f"{every}"})
        given = {"keep": keep, "keep_every": rarely}
        run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update=given)})
        steps = {*range(every, last + 1, every), last} if every else {last}
        newest = set(sorted(steps)[-keep:]) if keep else steps
        rare = {step for step in steps if rarely and keep and not step % rarely}
        room = disk_room(run, tmp_path, begun)
        assert room.kept == len(newest | rare), (last, every, rarely)
        if not keep:
            assert room.there == room.each * sum(1 for step in steps if step <= begun)


def test_a_run_of_billions_of_steps_is_counted_at_once(tmp_path):
    run = derived(LONG)
    train = run.train.model_copy(update={"train_iters": 2**52})
    assert disk_room(run.model_copy(update={"train": train}), tmp_path).kept == -(-(2**52) // 50)


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


def test_only_what_helps_is_advised(tmp_path, monkeypatch):
    each = 12 * count_parameters(derived(LONG).model)

    def advice(free, **env):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        (line,) = disk_room(derived({**LONG, **env}), tmp_path).warnings(tmp_path)
        return line.partition("; ")[2]

    # With CKPT_KEEP=2 there are three while the third is written.
    assert advice(3 * each - 1) == "set CKPT_KEEP=1, a larger SAVE_INTERVAL, or CKPT_DIR on another disk"
    assert advice(2 * each, CKPT_KEEP="2") == "set CKPT_KEEP=1, a larger SAVE_INTERVAL, or CKPT_DIR on another disk"
    assert advice(2 * each - 1, CKPT_KEEP="1") == "set a larger SAVE_INTERVAL, or CKPT_DIR on another disk"
    assert advice(each - 1) == "set CKPT_DIR on another disk"


def test_a_run_that_saves_no_optimizer_needs_a_third(tmp_path):
    run = derived(LONG)
    weights = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"save_optim": False})})
    assert 3 * disk_room(weights, tmp_path).each == disk_room(run, tmp_path).each
