"""What `megads generate` writes, and who reports an error."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace

import click
import pytest

from megads.cli import generate as command
from megads.errors import ConfigError


@pytest.fixture
def write():
    """Return what writes one record to a file."""
    return lambda target: command._write_records(SimpleNamespace(speaks=True), [{"id": 0}], str(target))


def test_a_pipe_is_written_and_not_replaced(tmp_path, write):
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write(pipe)
    reader.join(30)
    assert found == ['{"id": 0}\n']
    assert pipe.is_fifo()


def _full(source: object, target: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_written_leaves_nothing(tmp_path, write, monkeypatch):
    monkeypatch.setattr("megads.cli.generate.os.replace", _full)
    with pytest.raises(ConfigError, match=r"--output .*out: No space left"):
        write(tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rank", "waits"), [("0", []), ("1", [command.REPORT_S])])
def test_ranks_but_the_first_wait_before_they_report_an_error(monkeypatch, rank, waits):
    waited: list[float] = []
    monkeypatch.setattr("megads.cli.generate.time.sleep", waited.append)
    monkeypatch.setattr("megads.cluster.ranks.find_ranks", lambda env: SimpleNamespace(rank=int(rank)))

    @command.model_options
    def fails(**options: object) -> None:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError, match="wrong"):
        click.command()(fails).main(["run"], standalone_mode=False)
    assert waited == waits
