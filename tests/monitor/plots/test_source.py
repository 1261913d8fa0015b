"""Runs are found by what a user names; their settings are read or not there."""

from megads.monitor.plots.source import Run, differing, metrics_of, names_of, read_run
from tests.monitor.plots.made import make_run, rows_of, write_rows


def test_runs_are_found_by_folder_file_and_checkpoint(tmp_path, monkeypatch):
    path = make_run(tmp_path / "r", rows_of(3))
    checkpoint = tmp_path / "r/checkpoints/iter_0000003"
    checkpoint.mkdir(parents=True)
    for given in (path, path.parent, checkpoint, checkpoint.parent):
        assert metrics_of(given) == path
    monkeypatch.chdir(checkpoint)
    assert metrics_of(checkpoint.relative_to(checkpoint)) == path


def test_names_are_as_long_as_they_must_be(tmp_path):
    for name in ("x/a", "y/a", "y/b"):
        write_rows(tmp_path / name, rows_of(1))
    assert names_of([tmp_path / "x/a", tmp_path / "y/b"]) == ["a", "b"]
    assert names_of([tmp_path / "x/a", tmp_path / "y/a"]) == ["x/a", "y/a"]


def test_settings_that_differ_are_listed(tmp_path):
    make_run(tmp_path / "a", rows_of(3), LR="3e-4", RUN_NAME="one")
    make_run(tmp_path / "b", rows_of(3), LR="6e-4", RUN_NAME="two")
    runs = [read_run(tmp_path / name, lambda key: True) for name in "ab"]
    assert differing(runs) == [("optim.lr", ["0.0003", "0.0006"])]
    assert differing([runs[0], runs[0]]) == []


def test_a_run_without_settings_is_drawn_all_the_same(tmp_path):
    path = write_rows(tmp_path, rows_of(3))
    (tmp_path / "config.yaml").write_text("{ broken")
    run = read_run(path, lambda key: True)
    assert isinstance(run, Run)
    assert run.settings == {}
