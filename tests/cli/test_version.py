"""``megads --version``."""

from __future__ import annotations

import platform
from importlib import metadata

from click.testing import CliRunner

from megads.cli import main, version
from megads.release.commit import own_commit
from megads.release.versions import FORMATS, VERSION


def test_version_commit_formats_and_libraries_are_shown():
    lines = CliRunner().invoke(main, ["--version"]).output.splitlines()
    assert lines[0] == f"megads {VERSION}, commit {own_commit()}"
    assert all(f"{name} {each.version}" in lines[1] for name, each in FORMATS.items())
    assert lines[2].startswith(f"Python {platform.python_version()}, torch {metadata.version('torch')}, deepspeed ")


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(version, "LIBRARIES", ("no-such-library",))
    assert CliRunner().invoke(main, ["--version"]).output.endswith("no no-such-library\n")
