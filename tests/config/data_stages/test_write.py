from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megads.config.data_stages.lengths import plan_stages
from megads.config.data_stages.read import GivenStage, read_stages
from megads.config.data_stages.write import past_stage, stages_text
from megads.errors import ConfigError
from tests.config.data_stages.files import write_stages
from tests.config.data_stages.test_read import WHOLE


def _plain(stages: list[GivenStage]) -> list[GivenStage]:
    return [replace(each, where="", line=0) for each in stages]


def test_stages_come_back(tmp_path: Path) -> None:
    text = WHOLE.replace("0.5 a/b web", '0.5 "a b" web').replace("1 c/d", "1 $HERE/d")
    text += "  - {iters: 1, lr: constant}\n"
    given = read_stages(write_stages(tmp_path, text))
    other = tmp_path / "elsewhere"
    other.mkdir()
    found = read_stages(write_stages(other, stages_text(given, "a title", tmp_path)))
    lines = (f'0.5 "{tmp_path}/a b" web', "1 $HERE/d")
    expected = [replace(each, data=replace(each.data, lines=lines)) if each.data.lines else each for each in given]
    assert _plain(found) == _plain(expected)


def test_the_past_has_the_order_that_it_had(tmp_path: Path) -> None:
    """Stages that read on do so in the order of the run that a branch is of."""
    text = "stages:\n- {name: a, iters: 3, seed: 4}\n- {name: b, iters: 5}\n- {name: c, iters: 2, data: x}\n"
    before = plan_stages(read_stages(write_stages(tmp_path, text)), 16, 2, "")
    a, b, _ = before.stages
    past = [past_stage(a, 3, 0.1), past_stage(b, 4, 0.1)]
    more = GivenStage("more", "", 0, "iters", 2, a.data)
    table = plan_stages(read_stages(write_stages(tmp_path, stages_text([*past, more], "", tmp_path))), 16, 2, "")
    assert [(each.first, each.iters, each.past) for each in table.stages] == [
        (0, 3, True),
        (6, 4, True),
        (14, 2, False),
    ]
    assert [(each.seed, each.offset, each.planned) for each in table.stages] == [(4, 0, 18), (4, 6, 18), (4, 14, 18)]


def test_past_stages_come_first(tmp_path: Path) -> None:
    path = write_stages(tmp_path, "stages:\n- {name: a, iters: 1}\n- {iters: 1, past: yes}\n")
    with pytest.raises(ConfigError, match="yaml:3: past: stage a is before it, and not past; put past stages first"):
        read_stages(path)
    with pytest.raises(ConfigError, match=r"yaml:2: past: 'maybe' is not a switch"):
        read_stages(write_stages(tmp_path, "stages:\n- {iters: 1, past: maybe}\n"))
