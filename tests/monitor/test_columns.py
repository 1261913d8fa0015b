import json
import os

import numpy as np
import pytest

from megads.monitor import columns
from megads.monitor.columns import read_columns
from tests.monitor.plots.made import rows_of, write_rows


def everything(key):
    return True


def test_columns_hold_what_the_rows_hold(tmp_path):
    rows = rows_of(120)
    found = read_columns(write_rows(tmp_path, rows), everything)
    steps = [row for row in rows if "lm_loss" in row]
    assert found["lm_loss"].x.tolist() == [row["iteration"] for row in steps]
    assert found["lm_loss"].y.tolist() == [np.float32(row["lm_loss"]) for row in steps]
    assert found["valid_loss/web"].x.tolist() == [50, 100]
    assert found["lm_loss"].x is found["mfu"].x


def test_only_what_is_wanted_is_kept(tmp_path):
    assert set(read_columns(write_rows(tmp_path, rows_of(60)), lambda key: key in ("mfu", "valid_loss"))) == {
        "mfu",
        "valid_loss",
    }


def test_null_is_nan_and_what_is_no_number_too(tmp_path):
    path = write_rows(tmp_path, [{"iteration": i, "a": each} for i, each in enumerate([1, None, "x", [2], True, 3.5])])
    column = read_columns(path, everything)["a"]
    assert np.array_equal(column.y, np.float32([1, np.nan, np.nan, np.nan, 1, 3.5]), equal_nan=True)
    assert column.numbers().x.tolist() == [0, 4, 5]


@pytest.mark.parametrize(
    "line",
    ['{"iteration": 9, "lm_lo', "\0" * 40, "[1, 2]", "7", "", '{"lm_loss": 1.0}', "\xff"],
    ids=["half", "zeros", "list", "number", "blank", "without iteration", "no text"],
)
@pytest.mark.parametrize("end", ["", "\n"], ids=["open", "ended"])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line, end):
    path = write_rows(tmp_path, rows_of(5))
    with open(path, "a", encoding="latin-1") as file:
        file.write(line + end)
    assert read_columns(path, everything)["lm_loss"].x.tolist() == [1, 2, 3, 4, 5]


def test_nan_as_other_writers_leave_it(tmp_path):
    (tmp_path / "m").write_text('{"iteration": 1, "a": NaN}\n{"iteration": 2, "a": 2.0}\n')
    assert read_columns(tmp_path / "m", everything)["a"].numbers().x.tolist() == [2]


def test_a_run_that_went_back_has_each_iteration_once_as_it_was_last(tmp_path):
    rows = [{"iteration": i, "a": float(i)} for i in (1, 2, 3, 4)] + [
        {"iteration": i, "a": -float(i)} for i in (3, 4, 5)
    ]
    column = read_columns(write_rows(tmp_path, rows), everything)["a"]
    assert (column.x.tolist(), column.y.tolist()) == ([1, 2, 3, 4, 5], [1, 2, -3, -4, -5])


def test_rows_of_two_kinds_with_one_key_are_one_column(tmp_path):
    rows = [{"iteration": 1, "a": 1.0}, {"iteration": 2, "a": 2.0, "b": 0.0}, {"iteration": 3, "a": 3.0}]
    assert read_columns(write_rows(tmp_path, rows), everything)["a"].y.tolist() == [1, 2, 3]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("block", [64, 1000, 1 << 18])
def test_neither_blocks_nor_processes_change_what_is_read(tmp_path, monkeypatch, processes, block):
    path = write_rows(tmp_path, rows_of(301))
    whole = read_columns(path, everything)
    monkeypatch.setattr(columns, "BLOCK", block)
    monkeypatch.setattr(columns, "WORTH_SPLITTING", 1)
    found = read_columns(path, everything, processes=processes)
    assert found.keys() == whole.keys()
    for key, column in whole.items():
        assert np.array_equal(found[key].x, column.x), key
        assert np.array_equal(found[key].y, column.y), key


def test_a_file_shorter_than_its_processes_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "WORTH_SPLITTING", 1)
    path = write_rows(tmp_path, [{"iteration": 1, "a": 1.0}])
    assert read_columns(path, everything, processes=4)["a"].y.tolist() == [1]
    os.truncate(path, 0)
    assert read_columns(path, everything, processes=4) == {}


def test_numbers_beyond_float32_do_not_fail(tmp_path):
    (tmp_path / "m").write_text(json.dumps({"iteration": 1, "a": 1e300}) + "\n")
    assert np.isinf(read_columns(tmp_path / "m", everything)["a"].y[0])
