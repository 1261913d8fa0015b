from __future__ import annotations

import errno
import math
import multiprocessing
import os
import threading
import time
from contextlib import suppress

import pytest

from megads.storage import file_lock
from megads.storage.file_lock import take_lock


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    with take_lock(path):
        assert take_lock(path) is None
    with take_lock(path):
        pass
    assert path.exists()
    with take_lock(tmp_path, is_folder=True):
        assert take_lock(tmp_path, is_folder=True) is None


def test_a_temporary_lock_file_is_removed_whatever_happens(tmp_path):
    path = tmp_path / "lock"
    with suppress(KeyboardInterrupt), take_lock(path, temporary=True):
        assert path.exists()
        raise KeyboardInterrupt
    assert not path.exists()


@pytest.mark.parametrize("wait_s", [60, math.inf])
def test_waiting_for_a_holder_that_releases(tmp_path, wait_s):
    lock = take_lock(tmp_path / "lock", temporary=True)
    timer = threading.Timer(0.1, lock.release)
    began = time.monotonic()
    timer.start()
    with take_lock(tmp_path / "lock", wait_s=wait_s, temporary=True):
        assert time.monotonic() - began >= 0.1
        timer.join()
        assert take_lock(tmp_path / "lock") is None


def test_waiting_has_a_limit(tmp_path):
    with take_lock(tmp_path / "lock"):
        began = time.monotonic()
        assert take_lock(tmp_path / "lock", wait_s=0.2) is None
        assert 0.2 <= time.monotonic() - began < 60


def test_a_lock_file_that_was_replaced_is_not_the_lock(tmp_path, monkeypatch):
    """The holder before removed the file after this process opened it, and a third one has created it again."""
    path = tmp_path / "lock"
    lock = file_lock.try_lock

    def replaced(handle: int) -> bool | None:
        path.rename(tmp_path / "old")
        path.touch()
        return lock(handle)

    monkeypatch.setattr(file_lock, "try_lock", replaced)
    assert take_lock(path) is None


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def hold() -> None:
        take_lock(tmp_path / "lock")
        ready.set()
        time.sleep(60)

    holder = context.Process(target=hold)
    holder.start()
    assert ready.wait(30)
    assert take_lock(tmp_path / "lock") is None
    holder.kill()
    holder.join()
    with take_lock(tmp_path / "lock"):
        pass


def test_file_systems_without_locks_grant_it(tmp_path, monkeypatch):
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    with take_lock(tmp_path / "lock", temporary=True), take_lock(tmp_path / "lock"):
        pass
    assert not (tmp_path / "lock").exists()


def test_a_lock_file_that_cannot_be_created_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        take_lock(tmp_path / "no" / "lock")
    with pytest.raises(FileNotFoundError):
        take_lock(tmp_path / "no", is_folder=True)
    assert not (tmp_path / "no").exists()
