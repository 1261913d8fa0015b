from __future__ import annotations

from pathlib import Path

from megads.config.data_stages.views import runs_of_stages, tokens_until
from megads.config.schedule.batches import planned_samples
from tests.config.data_stages.files import derived, write_stages

TEXT = """stages:
- {iters: 3, seq: 8, data: a.txt}
- {iters: 2, seq: 16, global_batch: 4, planned: 5, mixture: {x: 1}}
"""


def test_a_stage_is_a_run(tmp_path: Path) -> None:
    run = derived(write_stages(tmp_path, TEXT), SEQ="0", SEED="7", EVAL_ITERS="3")
    (_, first), (_, second) = runs_of_stages(run)
    assert (first.model.seq_length, first.train.train_iters, planned_samples(first)) == (8, 3, 6)
    assert (second.model.seq_length, second.train.train_iters, planned_samples(second)) == (16, 2, 20)
    assert (second.train.global_batch, second.train.grad_acc_steps) == (4, 4)
    assert first.data.file_list == str(tmp_path / "a.txt")
    assert (first.train.eval_iters, second.train.eval_iters) == (3, 0)
    assert first.train.seed_of_data == 7 != second.train.seed_of_data
    assert (first.data.stage_table, first.data.stages) == ("", "")


def test_tokens_are_those_of_the_stages(tmp_path: Path) -> None:
    run = derived(write_stages(tmp_path, TEXT), SEQ="0")
    assert [tokens_until(run, consumed) for consumed in (0, 6, 7, 14)] == [0, 48, 64, 176]
    plain = derived(Path(""), DATA_STAGES="", TRAIN_ITERS="3")
    assert tokens_until(plain, 5) == 80
