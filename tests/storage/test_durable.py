"""What must be on the disk is synced; where a file system cannot, that is no error, and a failing disk is one."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from megads.storage.durable import sync, write_synced


def failing(code):
    def fsync(handle):
        raise OSError(code, os.strerror(code))

    return fsync


def test_a_file_is_replaced_by_its_whole_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"longer than what comes")
    write_synced(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_flush_folders_is_no_error(tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "fsync", failing(code))
    gc.collect()  # what earlier tests left open closes now, not in between
    before = len(os.listdir("/proc/self/fd"))
    sync(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "fsync", failing(code))
    for write in (sync, lambda folder: write_synced(folder / "file", b"new")):
        with pytest.raises(OSError, match=os.strerror(code)):
            write(tmp_path)
