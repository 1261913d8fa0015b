from __future__ import annotations

import re
from pathlib import Path

import pytest

from megads.config.data_stages.changes import changes, position_problem
from megads.config.data_stages.table import StageTable
from tests.config.data_stages.files import derived, write_stages

BEFORE = (
    "stages:\n- {name: a, iters: 3}\n- {name: b, iters: 4, data: x/list.txt}\n- {name: c, iters: 2, mixture: {x: 1}}\n"
)
AT = 10  # samples: in the middle of b


def _table(folder: Path, text: str) -> StageTable:
    table = StageTable.of(derived(write_stages(folder, text)))
    assert table is not None
    return table


FREE = {
    "nothing": BEFORE,
    "a later stage": BEFORE.replace("iters: 2, mixture: {x: 1}}", "iters: 9, global_batch: 4, data: y.txt}"),
    "no later stage": BEFORE.partition("- {name: c")[0],
    "the folder of a list": BEFORE.replace("x/list", "z/list"),
    "a name": BEFORE.replace("name: a", "name: first"),
}


@pytest.mark.parametrize("what", FREE)
def test_what_has_not_begun_may_change(tmp_path: Path, what: str) -> None:
    before, now = _table(tmp_path, BEFORE), _table(tmp_path, FREE[what])
    assert not position_problem(before, now, AT)
    assert list(changes(before, now, AT)) == []


LINES = {
    "other data": (BEFORE.replace("list.txt", "y.txt"), "had stage b of list.txt seed .*, this run has y.txt"),
    "a longer stage": (BEFORE.replace("iters: 4", "iters: 5"), "had stage b planned for 8 samples, this run plans 10"),
    "a shorter one": (BEFORE.replace("iters: 4", "iters: 2"), "had stage b planned for 8 samples, this run plans 4"),
    "data that is over": (BEFORE.replace("iters: 3", "iters: 3, seed: 5"), "had stage a of seed 0, .*which is over"),
}


@pytest.mark.parametrize("what", LINES)
def test_what_the_next_samples_show_is_a_line(tmp_path: Path, what: str) -> None:
    text, line = LINES[what]
    before, now = _table(tmp_path, BEFORE), _table(tmp_path, text)
    assert not position_problem(before, now, AT)
    (found,) = changes(before, now, AT)
    assert list(changes(before, now, AT, grows=True)) == ([] if "planned" in line else [found])
    assert re.search(line, found)


def test_a_plan_keeps_the_order_of_a_stage_that_grows(tmp_path: Path) -> None:
    planned = BEFORE.replace("iters: 4", "iters: 4, planned: 6")
    before, now = _table(tmp_path, planned), _table(tmp_path, planned.replace("iters: 4", "iters: 6"))
    assert list(changes(before, now, AT)) == []


WRONG = {
    BEFORE.replace("iters: 3", "iters: 2"): "stages.yaml:2: stage a has 2 iterations, and the checkpoint was trained w",
    BEFORE.replace("iters: 4", "iters: 4, global_batch: 4"): "stages.yaml:3: stage b has 4 samples a step",
    BEFORE.replace("iters: 4", "iters: 1"): "stages.yaml:3: stage b ends after 8 samples of the run, and 10 are",
    "stages:\n- {name: a, iters: 3}\n": "the stages end after 6 samples, and 10 are consumed",
}


@pytest.mark.parametrize("text", WRONG)
def test_another_position_is_a_problem(tmp_path: Path, text: str) -> None:
    before = _table(tmp_path, BEFORE)
    problem = position_problem(before, _table(tmp_path, text), AT)
    assert WRONG[text] in problem


def test_stages_may_come_later(tmp_path: Path) -> None:
    now = _table(tmp_path, BEFORE)
    assert not position_problem(None, now, AT)
    assert list(changes(None, now, AT)) == [
        "had no stages of data, this run has 3 stages: the sample order changes, and samples may repeat"
    ]
    assert "had 3 stages of data, this run has no stages" in next(iter(changes(now, None, AT)))
    assert list(changes(None, None, AT)) == []
