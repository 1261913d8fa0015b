from __future__ import annotations

from pathlib import Path

from megads.launch.preflight.data_stages import stage_rows
from tests.config.data_stages.files import derived, write_stages
from tests.data.factory import write_dataset, write_list


def test_the_table_of_stages(tmp_path: Path) -> None:
    files = [write_dataset(tmp_path, [64] * 4, name=name) for name in ("a", "b")]
    given = write_list(tmp_path / "list.txt", *(f"1 {prefix}" for prefix in files))
    text = """stages:
- {name: main, iters: 4, seq: 16, lr: {warmup: 1 iters}}
- {name: anneal, iters: 20, planned: 40, seq: 32, mixture: {a: 1}, lr: {to: 0, shape: linear}}
"""
    env = {"SEQ": "0", "DATA_FILE_LIST": str(given), "TRAIN_SPLIT": "1", "VAL_SPLIT": "0", "LR": "1e-3"}
    run = derived(write_stages(tmp_path, text), **env)
    assert [line for _, line in stage_rows(run)] == [
        f"2 stages of {tmp_path}/stages.yaml, 1.41k tokens",
        "main    steps 1-4   128 tokens    2 x 16  lr 0 to 0.001      a 50.0% (0.25 epochs), b 50.0% (0.25 epochs)",
        "anneal  steps 5-24  1.28k tokens  2 x 32  lr 0.001 to 5e-05  a 100.0% (10 epochs); order made for 80 samples",
        "read often: a 10.2 epochs in all stages together",
    ]


def test_a_run_without_stages_has_no_rows() -> None:
    assert list(stage_rows(derived(Path(""), DATA_STAGES="", TRAIN_ITERS="1"))) == []
