"""A bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from megads.cli.progress_bar import bar


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
