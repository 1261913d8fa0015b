"""The command that lists hosts that are known for failures."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megads.cli.nodes import nodes
from megads.errors import ConfigError
from megads.launch.nodes.memory import NodeMemory


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGADS_NODES", str(tmp_path / "nodes.jsonl"))
    return NodeMemory(tmp_path / "nodes.jsonl", "aurora")


def ask(*words: str) -> str:
    return CliRunner().invoke(nodes, ["--machine", "aurora", *words], catch_exceptions=False).output


def test_hosts_are_listed_the_worst_first_and_can_be_forgotten(memory):
    assert ask().startswith("nothing speaks against a host of machine aurora (")
    memory.note("n1", "failed", job="7", why="uncorrectable ECC error")
    memory.note("n2", "broken", why="devices: 3 of 4")
    lines = ask().splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["n2", "excluded", "2.00"], ["n1", "used", "1.00"]]
    assert "in job 7: uncorrectable ECC error" in lines[1]
    assert ask("--forget", "n2.cluster").startswith("n1 ")
    with pytest.raises(ConfigError, match="--forget n9: nothing is known of it on machine aurora"):
        ask("--forget", "n9")


def test_a_memory_that_cannot_be_read_or_written_is_an_error(memory, monkeypatch):
    memory.note("n1", "broken", why="devices: 3 of 4")
    monkeypatch.setattr(NodeMemory, "note", lambda *words, **more: "No space left on device")
    with pytest.raises(ConfigError, match=r"--forget n1: .*nodes.jsonl cannot be written: No space left on device"):
        ask("--forget", "n1")
    memory.path.unlink()
    memory.path.mkdir()
    with pytest.raises(ConfigError, match=r"MEGADS_NODES=.*nodes.jsonl: cannot be read: .* it should be a file"):
        ask()
