"""The table of chunks and their tokens."""

import h5py
import numpy as np
import pytest

from megads.data.retro.project import Project
from megads.errors import DataError
from tests.data.retro.made import EOD, make_project


def test_tokens_of_a_chunk_and_of_those_behind_it(tmp_path):
    made = make_project(tmp_path / "p")
    database = Project.open(made.folder).database()
    count = len(made.chunks)
    assert len(database) == count == 14
    ids = np.array([[0, count - 1, 2], [5, -1, 3]])
    for length in (4, 8, 12):
        expected = [
            [token for k in range(length // 4) for token in ([EOD] * 4 if i < 0 else made.chunk((i + k) % count, 4))]
            for i in ids.ravel().tolist()
        ]
        found = database.tokens(ids, length)
        assert found.dtype == np.int64
        assert found.reshape(6, length).tolist() == expected
    assert database.tokens(3, 4).shape == (4,)
    assert np.array_equal(database.documents(), made.chunks[:, :2])


def test_what_does_not_fit_is_one_line(tmp_path):
    made = make_project(tmp_path / "p")
    database = Project.open(made.folder).database()
    with pytest.raises(DataError, match="chunk 14 does not exist, there are 14"):
        database.tokens([0, 14], 8)
    with pytest.raises(DataError, match="chunk -2 does not exist"):
        database.tokens([-2], 8)
    with pytest.raises(DataError, match="expected a multiple of the chunk length, 4"):
        database.tokens([0], 6)


@pytest.mark.parametrize("row", [(7, 0, 0, 4), (0, 90, 0, 4), (0, 0, 8, 12), (0, 0, 4, 4), (0, 0, 0, 5)])
def test_a_table_of_other_token_files_is_refused(tmp_path, row):
    made = make_project(tmp_path / "p")
    with h5py.File(made.folder / "db" / "merged" / "train.hdf5", "a") as file:
        file["chunks"][2, :4] = row
    with pytest.raises(DataError, match=r"chunk 2 is tokens .* they changed since the database was built"):
        Project.open(made.folder).tokens([2], 4)


def test_a_table_that_was_not_finished_is_refused(tmp_path):
    made = make_project(tmp_path / "p")
    with h5py.File(made.folder / "db" / "merged" / "train.hdf5", "a") as file:
        file["n_written"][0] = 5
    with pytest.raises(DataError, match="5 of 14 chunks were written"):
        Project.open(made.folder).database()
