"""What comes from files cannot write control characters to a terminal."""

from __future__ import annotations

import io
import json
import logging

import pytest
from click.testing import CliRunner

from megads.cli.data.files import check, info
from megads.cli.runs import runs
from megads.errors import DataError, plain
from megads.monitor.log import LOG, start_log
from megads.monitor.run_state.watch import Watch
from tests.data.factory import write_dataset

EVIL = "a\x1b[2J\x9b31m\r\x07\u202eb"


def _clean(text: str) -> None:
    assert "\\x1b[2J" in text
    assert not [each for each in text if not each.isprintable() and each != "\n"]


def test_one_line_errors_and_plain_text():
    _clean(str(DataError(EVIL)))
    assert plain("a\nb\x1b", "\n") == "a\nb\\x1b"
    assert plain("text") == "text"


@pytest.mark.parametrize("rank", [0, 3])
def test_the_log(rank, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    before = (LOG.handlers, LOG.level, LOG.propagate)
    try:
        start_log(rank, "info")
        LOG.warning("file %s", EVIL)
    finally:
        LOG.handlers, LOG.level, LOG.propagate = before
        LOG.filters = [each for each in LOG.filters if isinstance(each, logging.Filter) and "Plain" not in str(each)]
    _clean(stream.getvalue())


def test_runs_and_watch(tmp_path):
    folder = tmp_path / EVIL
    folder.mkdir()
    outcome = {"exit_code": 1, "message": EVIL, "iteration": 1, "kind": "error", "rank": 0, "host": EVIL}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    done = CliRunner().invoke(runs, [str(tmp_path)], catch_exceptions=False)
    _clean(done.output)
    watch = Watch(folder)
    watch.poll()
    _clean(watch.line())
    _clean("\n".join(watch.screen(200, 30)))


def test_data_files(tmp_path):
    (tmp_path / EVIL).mkdir()
    prefix = write_dataset(tmp_path / EVIL, [4, 5])
    for command in (check, info):
        done = CliRunner().invoke(command, [prefix], catch_exceptions=False)
        assert done.exit_code == 0
        _clean(done.output)


@pytest.mark.parametrize("code", [-1, 256, 2**31, 10**18])
def test_an_exit_code_that_no_process_has_is_1(tmp_path, code):
    (tmp_path / "outcome.json").write_text(json.dumps({"exit_code": code, "message": "", "iteration": 1}))
    watch = Watch(tmp_path)
    watch.poll()
    assert watch.exit_code() == 1
