"""Blocks of rows: their names, whole or not at all, and what is found when they are damaged."""

import errno
import os

import h5py
import numpy as np
import pytest

from megads.data.retro import blocks as blocks_module
from megads.data.retro.blocks import (
    CRC,
    Table,
    blocks_of,
    columns_of,
    missing_blocks,
    problem_of,
    read_arrays,
    write_arrays,
)
from megads.errors import DataError, DependencyError

ROWS = np.arange(20, dtype="int64").reshape(5, 4)
SHAPES = {"neighbors": (None, 4)}


@pytest.mark.parametrize(
    ("rows", "first", "last"),
    [(1, "0-1", "0-1"), (5, "00-02", "04-05"), (10, "00-02", "08-10"), (1000, "0000-0002", "0998-1000")],
)
def test_names_have_the_digits_of_upstream(tmp_path, rows, first, last):
    found = blocks_of(tmp_path, rows, 2)
    assert (found[0].path.stem, found[-1].path.stem) == (first, last)
    assert sum(len(block) for block in found) == rows


def test_no_rows_make_no_blocks(tmp_path):
    assert blocks_of(tmp_path, 0, 2) == []


def test_a_file_is_the_same_bytes_each_time_and_other_programs_read_it(tmp_path):
    write_arrays(tmp_path / "a" / "0-5.hdf5", {"neighbors": ROWS})
    write_arrays(tmp_path / "0-5.hdf5", {"neighbors": ROWS})
    assert (tmp_path / "a" / "0-5.hdf5").read_bytes() == (tmp_path / "0-5.hdf5").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] != ["a"]
    assert sorted(os.listdir(tmp_path)) == ["0-5.hdf5", "a"]
    with h5py.File(tmp_path / "0-5.hdf5") as file:
        assert file["neighbors"].dtype == "int64"
        assert np.array_equal(file["neighbors"], ROWS)
    assert np.array_equal(read_arrays(tmp_path / "0-5.hdf5", SHAPES)["neighbors"], ROWS)


def test_a_full_disk_is_said_without_the_calls_of_h5py(tmp_path):
    def fill(file):
        raise OSError(errno.ENOSPC, "Can't synchronously write data (buf = 0x5555)")

    with pytest.raises(
        DataError, match=r"0-5\.hdf5: cannot write \(No space left on device\); free some space"
    ) as told:
        blocks_module.write_file(tmp_path / "0-5.hdf5", fill)
    assert "0x" not in str(told.value)
    assert not os.listdir(tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write_arrays(tmp_path / "file" / "0-5.hdf5", {"neighbors": ROWS})

    def fail(file):
        file["neighbors"] = ROWS
        raise KeyError

    with pytest.raises(KeyError):
        blocks_module.write_file(tmp_path / "0-5.hdf5", fail)
    assert os.listdir(tmp_path) == ["file"]


def _flip(path):
    content = bytearray(path.read_bytes())
    place = content.index(ROWS[3].tobytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_flip, "neighbors differs from its checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read as HDF5"),
        (lambda path: path.write_bytes(b""), "cannot be read as HDF5"),
        (lambda path: write_arrays(path, {"neighbors": ROWS[:, :3]}), "neighbors is 5 x 3, expected any x 4"),
        (lambda path: write_arrays(path, {"other": ROWS}), "has no dataset 'neighbors'"),
        (lambda path: write_arrays(path, {"neighbors": ROWS[0]}), "neighbors is 4, expected any x 4"),
    ],
)
def test_a_damaged_block_is_found_named_and_removed(tmp_path, damage, problem):
    made = blocks_of(tmp_path, 12, 5)
    for block in made[:2]:
        write_arrays(block.path, {"neighbors": ROWS})
    damage(made[1].path)
    assert problem_of(made[0].path, SHAPES) == ""
    with pytest.raises(DataError, match=problem[:30]):
        read_arrays(made[1].path, SHAPES)
    wanted, notes = missing_blocks(made, lambda block: SHAPES)
    assert [block.start for block in wanted] == [5, 10]
    assert len(notes) == 1
    assert notes[0].startswith(f"{made[1].path}: {problem}")
    assert not made[1].path.exists()


def test_files_of_other_programs_have_no_checksum_and_may_be_in_pieces(tmp_path):
    with h5py.File(tmp_path / "0-5.hdf5", "w") as file:
        file.create_dataset("neighbors", data=ROWS, chunks=(2, 4), compression="gzip")
    with h5py.File(tmp_path / "none.hdf5", "w") as file:
        file["neighbors"] = np.array([], "uint32")
        assert CRC not in file["neighbors"].attrs
    assert problem_of(tmp_path / "0-5.hdf5", SHAPES) == ""
    assert problem_of(tmp_path / "none.hdf5", SHAPES) == ""
    assert np.array_equal(Table(tmp_path / "0-5.hdf5", "neighbors", 4).read(1, 4), ROWS[1:4])
    assert Table(tmp_path / "none.hdf5", "neighbors", 4).read(0, 0).shape == (0, 4)


def test_rows_of_a_table_are_read_from_disk(tmp_path):
    path = tmp_path / "0-5.hdf5"
    write_arrays(path, {"other": ROWS + 7, "neighbors": ROWS})
    table = Table(path, "neighbors", 4)
    assert len(table) == 5
    assert columns_of(path, "neighbors") == 4
    assert np.array_equal(table.read(2, 5), ROWS[2:])
    with pytest.raises(DataError, match=r"rows 4\.\.6 do not exist, there are 5"):
        table.read(4, 6)
    os.truncate(path, 100)
    with pytest.raises(DataError, match="was truncated meanwhile"):
        table.read(2, 5)


def test_what_is_no_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no such file; run `megads retro build` first"):
        Table(tmp_path / "x.hdf5", "neighbors", 4)
    with pytest.raises(DataError, match="expected an HDF5 file"):
        read_arrays(tmp_path, SHAPES)


def test_without_h5py_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(DependencyError, match=r"pip install -e '\.\[retro\]'"):
        blocks_module.load_h5py()
