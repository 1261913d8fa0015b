import pytest

from megads.cluster import disk
from megads.cluster.disk import probe_disk
from megads.errors import LaunchError


def test_a_folder_that_does_not_exist_yet_is_probed_above_and_left_clean(tmp_path):
    found = probe_disk(tmp_path / "runs" / "x", 2**20)
    assert found.free > 0
    assert found.write_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_can_not_be_written_is_told(tmp_path, monkeypatch):
    def refuse(**where):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.tempfile, "mkstemp", refuse)
    with pytest.raises(LaunchError, match=f"{tmp_path}: No space left on device; free some space or use"):
        probe_disk(tmp_path, 100)


def test_bytes_that_come_back_different_are_told(tmp_path, monkeypatch):
    numbers = iter([b"a" * 100, b"b" * 100])
    monkeypatch.setattr(disk.os, "urandom", lambda count: next(numbers))
    wrong = probe_disk(tmp_path, 100)
    assert wrong.free
    real = disk.os.fdopen

    def broken(handle, mode):
        file = real(handle, mode)
        read = file.read

        class Wrapped:
            def __getattr__(self, name):
                return getattr(file, name)

            def __enter__(self):
                return self

            def __exit__(self, *problem):
                file.close()

            def read(self, count):
                return read(count).replace(b"b", b"c")

        return Wrapped()

    monkeypatch.setattr(disk.os, "fdopen", broken)
    with pytest.raises(LaunchError, match="does not come back the same"):
        probe_disk(tmp_path, 100)
    assert list(tmp_path.iterdir()) == []
