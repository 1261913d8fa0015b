"""Which checkpoints there are, and which is taken."""

import os
import shutil
from pathlib import Path

import pytest

from megads.checkpoint.format.folders import (
    candidates,
    checkpoint_name,
    checkpoints_in,
    iteration_of,
    later,
    list_checkpoints,
    list_unfinished,
    remove_unfinished,
    retire,
    surplus,
    sweep,
)
from megads.errors import CheckpointError
from tests.checkpoint.made import find_latest, make


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


def make_names(folder: Path, *iterations: int) -> None:
    for iteration in iterations:
        make(folder, iteration, degree=1, bounds=())


def going(folder: Path, newest: int, keep: int, keep_every: int = 0) -> list[int]:
    return [int(path.name[5:]) for path in surplus(folder, folder / checkpoint_name(newest), keep, keep_every)]


@pytest.mark.parametrize(
    ("keep", "keep_every", "expected"),
    [
        (0, 0, []),
        (1, 0, [10, 20, 30, 40]),
        (2, 0, [10, 20, 30]),
        (9, 0, []),
        (1, 20, [10, 30]),
        (2, 25, [10, 20, 30]),
        (0, 20, []),
    ],
)
def test_the_newest_and_the_multiples_stay(tmp_path, keep, keep_every, expected):
    make_names(tmp_path, 10, 20, 30, 40, 50)
    assert going(tmp_path, 50, keep, keep_every) == expected


def _empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _cut_manifest(path: Path) -> None:
    os.truncate(path / "manifest.json", 100)


def _of_another_step(path: Path) -> None:
    shutil.copy(path.with_name(checkpoint_name(10)) / "manifest.json", path)


def _without_a_file(path: Path) -> None:
    (path / "rank-00000.safetensors").unlink()


@pytest.mark.parametrize("damage", [_empty, _cut_manifest, _of_another_step, _without_a_file])
def test_what_is_no_checkpoint_replaces_none_that_is_kept(tmp_path, damage):
    """Two are to be kept, so 30 is one of them; what lies between stays, and goes when it is old."""
    make_names(tmp_path, 10, 20, 30, 40, 45, 50)
    damage(tmp_path / checkpoint_name(40))
    damage(tmp_path / checkpoint_name(45))
    assert going(tmp_path, 50, 2) == [10, 20]
    assert going(tmp_path, 50, 3) == [10]
    assert going(tmp_path, 50, 9) == []
    make_names(tmp_path, 60, 70)
    assert going(tmp_path, 70, 2) == [10, 20, 30, 40, 45, 50]
    damage(tmp_path / checkpoint_name(50))
    assert find_latest(tmp_path).path == tmp_path / checkpoint_name(70)


def test_without_another_complete_one_nothing_goes(tmp_path):
    make_names(tmp_path, 30)
    for iteration in (10, 20):
        (tmp_path / checkpoint_name(iteration)).mkdir()
    assert going(tmp_path, 30, 2) == []
    assert going(tmp_path, 30, 1) == [10, 20]


def test_a_future_that_was_given_up_is_told_from_what_is_old(tmp_path):
    make_names(tmp_path, 10, 20, 25, 30, 40)
    assert [path.name[-2:] for path in later(tmp_path, tmp_path / checkpoint_name(25))] == ["30", "40"]
    assert going(tmp_path, 25, 1) == [10, 20]
    assert going(tmp_path, 25, 1, 10) == []


def test_what_goes_is_never_half_there_under_its_own_name(tmp_path, monkeypatch):
    """Killed after the first file of the first checkpoint was removed; the next start removes the rest."""
    make_names(tmp_path, 1, 2, 3)
    removed = []

    def die(path, ignore_errors):
        if path.exists():
            os.unlink(path / "manifest.json")
            removed.append(path)
            raise KeyboardInterrupt

    monkeypatch.setattr("megads.checkpoint.format.folders.shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        sweep(retire(surplus(tmp_path, tmp_path / checkpoint_name(3), 1, 0)))
    monkeypatch.undo()
    assert len(removed) == 1
    assert [path.name for path in list_checkpoints(tmp_path)] == [checkpoint_name(3)]
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == [checkpoint_name(3)]


def test_what_can_not_be_removed_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    make_names(tmp_path, 1, 2)
    monkeypatch.setattr("megads.checkpoint.format.folders.shutil.rmtree", lambda path, ignore_errors: None)
    with caplog.at_level("WARNING", logger="megads"):
        sweep(retire([tmp_path / checkpoint_name(1), tmp_path / checkpoint_name(7)]))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"checkpoint {tmp_path / checkpoint_name(7)} could not be removed: No such file or directory",
        f"{tmp_path / checkpoint_name(1)}.gone.tmp",
    ]
    assert [path.name for path in list_checkpoints(tmp_path)] == [checkpoint_name(2)]


def test_what_an_earlier_removal_left_is_in_nobodys_way(tmp_path):
    make_names(tmp_path, 1)
    shutil.copytree(tmp_path / checkpoint_name(1), tmp_path / (checkpoint_name(1) + ".gone.tmp"))
    sweep(retire([tmp_path / checkpoint_name(1)]))
    assert os.listdir(tmp_path) == []
