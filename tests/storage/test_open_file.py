"""Files that are no files, and advice after a failed write: space where a disk is full, and not where it fails."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from megads.config.run_folder import write_whole
from megads.errors import ConfigError, DataError
from megads.storage.open_file import NotRegular, kind_of, open_binary, open_file, open_regular, write_cure


@pytest.mark.parametrize(("number", "space"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_space_is_advised_where_it_helps(tmp_path, monkeypatch, number, space):
    def fail(*names: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="use another RUN_DIR") as error:
        write_whole(tmp_path / "x", "")
    assert ("free some space" in str(error.value)) == space
    assert ("its disk or the path to it fails" in str(error.value)) == (number == errno.EIO)
    assert write_cure(OSError(errno.EACCES, "x"), "use another folder") == "use another folder"


def test_what_is_no_file_is_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), (tmp_path / "socket", "a socket")):
        assert kind_of(path) == kind
        with pytest.raises(NotRegular) as error:
            open_file(path)
        assert error.value.strerror == f"is {kind}, expected a regular file"
        with pytest.raises(DataError, match=f"the list: is {kind}; pass a list"):
            open_regular(path, missing=str, expected="pass a list", name="the list")
    server.close()
    with pytest.raises(NotRegular, match="null"):
        open_file("a\0b")
    assert kind_of(tmp_path / "none") == ""


def test_a_file_is_opened_with_its_size(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    handle, size = open_file(tmp_path / "x")
    os.close(handle)
    assert size == 3
    with open_binary(tmp_path / "x") as file:
        assert file.read() == b"abc"
    with pytest.raises(DataError, match="none: no such file; pass another"):
        open_regular(tmp_path / "none", missing=lambda: "pass another")
