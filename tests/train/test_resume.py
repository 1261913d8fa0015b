"""Checkpoints that were skipped at a start: they stay, under a name that nothing takes for a checkpoint."""

from __future__ import annotations

from megads.checkpoint.format.folders import checkpoint_name, list_checkpoints, remove_unfinished, surplus
from megads.train.resume import _put_aside


def test_what_was_damaged_is_neither_found_nor_removed(tmp_path):
    made = [tmp_path / checkpoint_name(step) for step in (50, 100, 150)]
    for path in made:
        path.mkdir()
        (path / "weights").write_text(path.name)
    _put_aside(made[1:])
    assert list_checkpoints(tmp_path) == made[:1]
    again = tmp_path / checkpoint_name(100)
    again.mkdir()
    assert surplus(tmp_path, again, keep=1, keep_every=0) == made[:1]
    remove_unfinished(tmp_path)
    kept = [path.with_name(path.name + ".damaged") / "weights" for path in made[1:]]
    assert [path.read_text() for path in kept] == [path.name for path in made[1:]]


def test_one_that_is_damaged_again_replaces_nothing(tmp_path):
    for _ in range(3):
        path = tmp_path / checkpoint_name(50)
        path.mkdir()
        (path / "weights").write_text("w")
        _put_aside([path])
    names = ["iter_0000050.damaged", "iter_0000050.damaged.1", "iter_0000050.damaged.2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
