import resource

import pytest

from megads.errors import LaunchError
from megads.launch.preflight import process_limits


def test_open_files_are_raised_and_too_few_are_refused(monkeypatch):
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: set_to.append(limit))
    assert process_limits.raise_open_files() == 4096
    assert set_to == [(4096, 4096)]
    process_limits.check_open_files(1920)
    with pytest.raises(LaunchError) as error:
        process_limits.check_open_files(1921)
    assert str(error.value) == (
        "1921 ranks join at rank 0, which needs 4098 open files, and the limit here is 4096 (`ulimit -Hn`); raise it "
        "to 4098, or use at most 1920 ranks"
    )
