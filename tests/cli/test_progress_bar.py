"""A bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from megads.cli.progress_bar import EVERY_S, FIRST_S, Lines, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("unit", "words"), [("tensors", "3/4 tensors"), ("", "3/4 bytes")])
def test_a_terminal_shows_how_much_is_done(monkeypatch, unit, words):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with bar("copying", unit) as update:
        update(3, 4)
    shown = re.sub(r"\x1b\[[\d;?]*\w", "", terminal.getvalue())
    assert "copying" in shown
    assert words in shown


def test_a_pipe_gets_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with bar("copying") as update:
        update(3, 4)
    assert pipe.getvalue() == ""


def test_a_pipe_gets_lines_now_and_then_where_they_are_wanted(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar("scoring", "windows", lines=True) as update:
        assert isinstance(update, Lines)
    monkeypatch.undo()
    now = [0.0]
    update = Lines("scoring", "windows", lambda: now[0])
    for at, done in ((1.0, 1), (FIRST_S, 10), (FIRST_S + 1, 11), (FIRST_S + EVERY_S, 40), (99.0, 80)):
        now[0] = at
        update(done, 80)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["megads: scoring: 10 of 80 windows, ETA 1m10s", "megads: scoring: 40 of 80 windows, ETA 40s"]
