"""Exports are compared where there is something to compare with, and nobody switched it off."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.function.record import KEY, Record
from megads.cli.checkpoint import replayed as module
from megads.cli.checkpoint.replayed import described, replayed
from tests.checkpoint.faked import fake


@pytest.fixture
def manifest(tmp_path):
    return read_manifest(fake(tmp_path, 3, about={KEY: Record({"bias": False}).dump()}))


def test_nothing_is_read_where_nothing_can_be_compared(tmp_path, manifest, monkeypatch):
    nowhere, said = Path("/nowhere"), []
    replayed(nowhere, read_manifest(fake(tmp_path / "old", 3)), said)("fp32", nowhere)
    monkeypatch.setenv("REPLAY_ROWS", "0")
    replayed(nowhere, manifest, said)("fp32", nowhere)
    assert said == []
    monkeypatch.delenv("REPLAY_ROWS")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    replayed(nowhere, manifest, said)("fp32", nowhere)
    assert said == ["not replayed: torch is not installed"]


def test_an_import_is_described_unless_nothing_is_compared(monkeypatch):
    monkeypatch.setattr("megads.inference.replay.describe_files", lambda place: {"function": place.name})
    assert described(Path("a/b"))() == {"function": "b"}
    monkeypatch.setenv("REPLAY_ROWS", "0")
    assert described(Path("a/b"))() == {}


def test_what_was_found_is_said(manifest, monkeypatch):
    said = []
    monkeypatch.setattr("megads.inference.replay.check_files", lambda *given: f"{given[2:]}")
    replayed(Path("a"), manifest, said)("bf16", Path("b"))
    assert said == [f"replay: ('bf16', {Path('b')!r})"]
