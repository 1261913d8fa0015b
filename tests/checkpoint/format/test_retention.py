"""Which checkpoints stay, and that none is ever half there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from megads.checkpoint.format.folders import checkpoint_name, list_checkpoints, remove_unfinished
from megads.checkpoint.format.retention import later, retire, surplus, sweep


def make(folder: Path, *iterations: int) -> None:
    for iteration in iterations:
        path = folder / checkpoint_name(iteration)
        path.mkdir(parents=True)
        for name in ("manifest.json", "rank-00000.safetensors"):
            (path / name).write_text("x")


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
    make(tmp_path, 10, 20, 30, 40, 50)
    assert going(tmp_path, 50, keep, keep_every) == expected


def test_a_future_that_was_given_up_is_told_from_what_is_old(tmp_path):
    make(tmp_path, 10, 20, 25, 30, 40)
    assert [path.name[-2:] for path in later(tmp_path, tmp_path / checkpoint_name(25))] == ["30", "40"]
    assert going(tmp_path, 25, 1) == [10, 20]
    assert going(tmp_path, 25, 1, 10) == []


def test_what_goes_is_never_half_there_under_its_own_name(tmp_path, monkeypatch):
    """Killed after the first file of the first checkpoint was removed; the next start removes the rest."""
    make(tmp_path, 1, 2, 3)
    removed = []

    def die(path, ignore_errors):
        if path.exists():
            os.unlink(path / "manifest.json")
            removed.append(path)
            raise KeyboardInterrupt

    monkeypatch.setattr("megads.checkpoint.format.retention.shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        sweep(retire(surplus(tmp_path, tmp_path / checkpoint_name(3), 1, 0)))
    monkeypatch.undo()
    assert len(removed) == 1
    assert [path.name for path in list_checkpoints(tmp_path)] == [checkpoint_name(3)]
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == [checkpoint_name(3)]


def test_what_can_not_be_removed_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    make(tmp_path, 1, 2)
    monkeypatch.setattr("megads.checkpoint.format.retention.shutil.rmtree", lambda path, ignore_errors: None)
    with caplog.at_level("WARNING", logger="megads"):
        sweep(retire([tmp_path / checkpoint_name(1), tmp_path / checkpoint_name(7)]))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"checkpoint {tmp_path / checkpoint_name(7)} could not be removed: No such file or directory",
        f"{tmp_path / checkpoint_name(1)}.gone.tmp",
    ]
    assert [path.name for path in list_checkpoints(tmp_path)] == [checkpoint_name(2)]


def test_what_an_earlier_removal_left_is_in_nobodys_way(tmp_path):
    make(tmp_path, 1)
    shutil.copytree(tmp_path / checkpoint_name(1), tmp_path / (checkpoint_name(1) + ".gone.tmp"))
    sweep(retire([tmp_path / checkpoint_name(1)]))
    assert os.listdir(tmp_path) == []
