from __future__ import annotations

import re
from pathlib import Path

import pytest

from megads.config.data_stages.table import StageTable
from megads.config.schedule.batches import planned_samples
from megads.errors import ConfigError
from tests.config.data_stages.files import derived, write_stages


def test_the_run_is_as_long_as_its_stages(tmp_path: Path) -> None:
    text = "stages:\n- {iters: 3, seq: 8}\n- {tokens: 100, seq: 24}\n- {samples: 5}\n"
    run = derived(write_stages(tmp_path, text), SEQ="0")
    table = StageTable.of(run)
    assert table is not None
    assert [(each.iters, each.seq) for each in table.stages] == [(3, 8), (2, 24), (2, 24)]
    assert (run.train.train_iters, run.train.train_samples, run.train.train_tokens) == (7, 14, 6 * 8 + 8 * 24)
    assert (run.model.seq_length, run.model.max_positions, planned_samples(run)) == (24, 24, 14)


def test_a_stage_behind_it_changes_no_earlier_one(tmp_path: Path) -> None:
    first = "stages:\n- {name: a, iters: 3, lr: {warmup: 1 iters}}\n- {name: b, iters: 4, mixture: {x: 1}}\n"
    before = StageTable.of(derived(write_stages(tmp_path, first)))
    after = StageTable.of(derived(write_stages(tmp_path, first + "- {name: c, iters: 2, data: y, lr: {to: 0}}\n")))
    assert before is not None
    assert after is not None
    assert before.stages == after.stages[:2]
    assert len({each.seed for each in after.stages}) == 3


def test_an_order_is_made_for_all_that_read_on(tmp_path: Path) -> None:
    text = """stages:
- {iters: 3, planned: 20}
- {iters: 4}
- {iters: 2, seed: 3}
- {iters: 1, planned: 4}
- {iters: 2}
- {iters: 2, data: x}
"""
    table = StageTable.of(derived(write_stages(tmp_path, text)))
    assert table is not None
    assert [(each.offset, each.planned) for each in table.stages] == [
        *((0, 40), (6, 40)),
        *((0, 12), (4, 12), (6, 12)),
        (0, 4),
    ]


def test_data_stays_until_a_stage_names_other(tmp_path: Path) -> None:
    text = (
        "stages:\n- {iters: 1}\n- {iters: 1, data: a.txt, mixture: {x: 1}}\n- {iters: 1}\n"
        "- {iters: 1, mixture: {y: 1}}\n- {iters: 1, data: [1 b]}\n"
    )
    table = StageTable.of(derived(write_stages(tmp_path, text)))
    assert table is not None
    found = [(Path(each.data.file_list).name, each.data.lines, each.data.mixture) for each in table.stages]
    x, y = (("x", 1.0),), (("y", 1.0),)
    assert found == [("", (), ()), ("a.txt", (), x), ("a.txt", (), x), ("a.txt", (), y), ("", ("1 b",), ())]


WRONG = {
    ("- {iters: 1}\n- {iters: 1, seq: 8}", ""): "stage stage1 has no seq, and stage2 has 8; give it one, too",
    ("- {iters: 1, seq: 8}", "SEQ=16"): "SEQ=16 (env SEQ), and .*stage stage1 has seq 8; leave SEQ unset",
    ("- {tokens: 31}", "SEQ=16"): "tokens 31 is less than one step of 2 samples x 16 tokens; use 32 or more",
    ("- {iters: 2}", "TRAIN_ITERS=3"): "TRAIN_ITERS=3 (env TRAIN_ITERS), and the stages of .* are 2 iterations",
    ("- {iters: 2}", "TRAIN_TOKENS=64"): "TRAIN_TOKENS=64 .*leave TRAIN_TOKENS unset",
    ("- {iters: 2}", "RAMPUP_BATCH_SIZE=1 1 2"): "RAMPUP_BATCH_SIZE=1 1 2 .*: give each stage a global_batch",
    ("- {iters: 2, lr: constant}", "LR_WARMUP_ITERS=1"): "LR_WARMUP_ITERS=1 .* has no effect .*the stages give the",
    ("- {iters: 2, lr: constant}", "MIN_LR=1e-5"): "MIN_LR=1e-05 .* has no effect",
    ("- {iters: 2, lr: 1e-4}", "LR=1e-3"): "LR=0.001 (env LR) has no effect",
    ("- {iters: 1, seq: 8}\n- {iters: 1, seq: 16}", "LR_WARMUP_TOKENS=9"): "LR_WARMUP_TOKENS=9 .*use another unit",
    ("- {iters: 2}\n- {iters: 2, lr: constant}", ""): "stage stage1 has no lr, and others have; give it one",
    ("- {iters: 2, lr: {warmup: 3 iters}}", ""): "stage stage1: warmup 3 iters = 6 samples are more than its 4",
    ("- {iters: 2, global_batch: 3}", "MICRO_BATCH=2"): "",
}


@pytest.mark.parametrize(("stages", "setting"), WRONG)
def test_what_contradicts_is_refused(tmp_path: Path, stages: str, setting: str) -> None:
    path, (name, _, value) = write_stages(tmp_path, f"stages:\n{stages}\n"), setting.partition("=")
    env = {"SEQ": "0"} if "seq" in stages and name != "SEQ" else {}
    message = WRONG[stages, setting]
    if not message:  # found by the rules, see tests/config/rules/test_data_stages.py
        derived(path, **{name: value})
        return
    match = ".*".join(map(re.escape, message.split(".*")))
    with pytest.raises(ConfigError, match=match) as found:
        derived(path, **{**env, **({name: value} if name else {})})
    assert "\n" not in str(found.value)


def test_the_same_length_may_be_given_again(tmp_path: Path) -> None:
    assert derived(write_stages(tmp_path, "stages:\n- {iters: 2}\n"), TRAIN_ITERS="2").train.train_iters == 2
