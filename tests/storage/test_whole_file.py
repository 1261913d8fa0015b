"""A file is whole, or as it was."""

from __future__ import annotations

import os

import pytest

from megads.storage.whole_file import whole_file


@pytest.mark.parametrize("before", [None, "before"])
def test_an_error_leaves_what_was_there(tmp_path, before):
    path = tmp_path / "plan.html"
    if before:
        path.write_text(before)

    def fail():
        with whole_file(path) as nearby:
            assert (nearby.parent, nearby.suffix) == (tmp_path, ".html")
            nearby.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [each.name for each in tmp_path.iterdir()] == (["plan.html"] if before else [])
    assert not before or path.read_text() == before


def test_it_takes_its_place_behind_a_link_with_its_mode(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    with whole_file(link) as nearby:
        nearby.write_text("after")
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("after", 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


def test_a_pipe_is_written_itself(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with whole_file(tmp_path / "pipe") as nearby:
        assert nearby == tmp_path / "pipe"
