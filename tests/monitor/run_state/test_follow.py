import json
import os

import numpy as np
import pytest

from megads.monitor import columns
from megads.monitor.columns import read_columns
from megads.monitor.metrics import MetricsFile
from megads.monitor.run_state import follow
from megads.monitor.run_state.follow import Follower
from megads.monitor.run_state.runs import facts_of
from tests.monitor.plots.made import rows_of, write_rows


def losses(follower):
    return follower.curves["lm_loss"][0].tolist()


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_rows_are_taken_in_as_they_come(tmp_path):
    follower = Follower(tmp_path / "metrics.jsonl")
    assert not follower.poll()
    path = write_rows(tmp_path, rows_of(50))
    assert follower.poll()
    assert not follower.poll()
    assert follower.validation["iteration"] == 50
    append(path, json.dumps({"iteration": 51, "lm_loss": 1.5}) + "\n")
    assert follower.poll()
    assert losses(follower) == list(range(1, 52))
    assert follower.steps[-1]["lm_loss"] == 1.5


def test_half_a_line_counts_once_it_is_whole(tmp_path):
    path = write_rows(tmp_path, rows_of(3))
    follower = Follower(path)
    follower.poll()
    append(path, '{"iteration": 4, "lm_')
    assert not follower.poll()
    append(path, 'loss": 1.0}\n{"iteration": 5')
    assert follower.poll()
    assert losses(follower) == [1, 2, 3, 4]


def test_a_line_that_is_no_row_is_passed_over(tmp_path):
    path = write_rows(tmp_path, rows_of(2))
    append(path, "\0\0\0\n" + json.dumps({"iteration": 3, "lm_loss": 1.0}) + "\n")
    follower = Follower(path)
    follower.poll()
    assert losses(follower) == [1, 2, 3]


def test_a_resumed_run_begins_its_file_anew(tmp_path):
    path = write_rows(tmp_path, rows_of(40))
    follower = Follower(path)
    follower.poll()
    resumed = MetricsFile(path, 25)
    resumed.write({"iteration": 26, "lm_loss": 9.0})
    for iteration in range(27, 60):  # longer than before
        resumed.write({"iteration": iteration, "lm_loss": 9.0})
    resumed.close()
    assert follower.poll()
    assert losses(follower) == list(range(1, 60))
    assert follower.curves["lm_loss"][1][25] == 9.0


@pytest.mark.parametrize("replace", [False, True], ids=["truncated", "replaced"])
def test_a_file_that_became_shorter_is_read_anew(tmp_path, replace):
    path = write_rows(tmp_path, rows_of(40))
    follower = Follower(path)
    follower.poll()
    if replace:
        os.replace(write_rows(tmp_path / "new", rows_of(10)), path)
    else:
        os.truncate(path, 0)
        append(path, "".join(json.dumps(row) + "\n" for row in rows_of(10)))
    follower.poll()
    assert losses(follower) == list(range(1, 11))


def test_a_file_that_goes_away_and_comes_back(tmp_path):
    path = write_rows(tmp_path, rows_of(5))
    follower = Follower(path)
    follower.poll()
    path.unlink()
    assert not follower.poll()
    write_rows(tmp_path, rows_of(7))
    follower.poll()
    assert losses(follower) == list(range(1, 8))


def test_a_run_that_goes_back_is_told_as_it_was_last(tmp_path):
    path = write_rows(tmp_path, rows_of(20))
    follower = Follower(path)
    follower.poll()
    append(path, json.dumps({"iteration": 11, "lm_loss": 7.0}) + "\n")
    follower.poll()
    assert losses(follower) == list(range(1, 12))
    assert follower.steps[-1]["lm_loss"] == 7.0


def test_a_long_file_is_known_as_if_it_was_read_line_by_line(tmp_path, monkeypatch):
    path = write_rows(tmp_path, rows_of(4000))
    slow = Follower(path)
    slow.poll()
    monkeypatch.setattr(follow, "WORTH_SPLITTING", 1 << 20)
    monkeypatch.setattr(columns, "WORTH_SPLITTING", 1 << 20)
    fast = Follower(path)
    fast.poll()
    assert fast.curves == slow.curves
    assert list(fast.steps) == list(slow.steps)
    whole = read_columns(path, lambda key: key == "valid_loss")["valid_loss"]
    assert np.array_equal(fast.columns()["valid_loss"].y, whole.y)


def test_a_mean_over_the_steps_since_the_last_row_is_shown_for_them(tmp_path):
    """As the log has it: one step's loss is noise where only every tenth has a row."""
    rows = [{"iteration": 10 * i, "lm_loss": 9.0, "lm_loss_mean": 10.0 - i} for i in range(1, 5)]
    rows.insert(2, {"iteration": 25, "lm_loss": 7.0})  # one that was skipped
    path = write_rows(tmp_path, rows)
    follower = Follower(path)
    follower.poll()
    assert follower.curves["lm_loss"][1].tolist() == [9.0, 8.0, 7.0, 7.0, 6.0]
    assert follower.steps[-1]["lm_loss"] == 6.0
    read = read_columns(path, lambda key: key == "lm_loss")
    assert list(read) == ["lm_loss"]
    assert (read["lm_loss"].x.tolist(), read["lm_loss"].y.tolist()) == ([10, 20, 25, 30, 40], [9.0, 8.0, 7.0, 7.0, 6.0])
    assert list(read_columns(path, lambda key: True)) == ["lm_loss", "lm_loss_mean"]
    assert facts_of(tmp_path).loss == 6.0
