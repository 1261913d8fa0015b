from __future__ import annotations

from pathlib import Path

from megads.config.rules.checks import problem_of
from tests.config.data_stages.files import derived, write_stages


def test_every_stage_keeps_the_rules(tmp_path: Path) -> None:
    good = "stages:\n- {name: a, iters: 1, seq: 8}\n- {name: b, iters: 1, seq: 16, global_batch: 4}\n"
    assert problem_of(derived(write_stages(tmp_path, good), 2, SP="2", SEQ="0"), 2) is None
    odd = derived(write_stages(tmp_path, good.replace("seq: 8", "seq: 9")), 2, SP="2", SEQ="0")
    problem = problem_of(odd, 2)
    assert problem is not None
    assert f"{tmp_path}/stages.yaml:2: stage a: SEQ=9 tokens cannot be split over SP=2 ranks" in problem.text
    batch = derived(write_stages(tmp_path, good.replace("batch: 4", "batch: 3")), 2, SEQ="0")
    problem = problem_of(batch, 2)
    assert problem is not None
    assert "stages.yaml:3: stage b: " in problem.text
