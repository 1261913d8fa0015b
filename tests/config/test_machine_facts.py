"""The facts of a machine file."""

from __future__ import annotations

import pytest

from megads.config.machine_facts import Facts
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError


def test_machine_facts(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.yaml").write_text("facts: {device: intel, description: a box}\nnote: hello\n")
    layer = read_machine("mine", tmp_path)
    assert layer.facts == Facts(device="intel", description="a box")
    assert (layer.note, layer.settings) == ("hello", {})


@pytest.mark.parametrize(("facts", "said"), [("device: xpu", "facts.device"), ("gpus: 4", "facts.gpus: no such fact")])
def test_wrong_facts(tmp_path, facts, said):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.yaml").write_text(f"facts: {{{facts}}}\n")
    with pytest.raises(ConfigError, match=f"machine mine.yaml: {said}"):
        read_machine("mine", tmp_path)
