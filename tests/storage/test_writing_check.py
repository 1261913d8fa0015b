"""Whether a folder takes files."""

from __future__ import annotations

import pytest

from megads.storage.writing_check import is_writable
from tests.shim import Rule, shimmed


def test_a_folder_takes_files(tmp_path):
    assert is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not is_writable(tmp_path / "gone")


@pytest.mark.parametrize(("call", "error"), [("write", "ENOSPC"), ("fsync", "EIO"), ("create", "EROFS")])
def test_a_folder_on_a_disk_that_fails_does_not(tmp_path, call, error):
    with shimmed([Rule(call, f"{tmp_path}/*", error)]):
        assert not is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
