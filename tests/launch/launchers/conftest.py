"""Launchers that are scripts, and the plans of launches with them."""

from __future__ import annotations

import os

import pytest

from megads.launch.launchers import command as starter_module
from tests.launch.launchers.helpers import JOB, SAY


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Return a PATH on which are the programs that a test names, answering as their kind does."""
    monkeypatch.setattr(starter_module, "master_address", lambda hosts, facts, further: hosts[0])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "taskset").symlink_to("/bin/true")

    def make(**programs: str) -> dict[str, str]:
        for name, kind in programs.items():
            file = tmp_path / name
            file.write_text(f"#!/bin/sh\necho '{SAY.get(kind, kind)}'\n")
            file.chmod(0o755)
        return {"PATH": str(tmp_path), "MEGADS_DEVICE": "cpu"} | dict.fromkeys(JOB, "7")

    return make
