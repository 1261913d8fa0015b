from __future__ import annotations

from pathlib import Path

from megads.plan.flops import flops_per_token
from megads.train.stage_speed import StageSpeed
from tests.config.data_stages.files import derived, write_stages


def test_a_step_counts_the_tokens_of_its_stage(tmp_path: Path) -> None:
    text = "stages:\n- {iters: 3, seq: 16}\n- {iters: 3, seq: 512}\n"
    speed_of = StageSpeed(derived(write_stages(tmp_path, text), SEQ="0"), 2, None)
    plain = {
        seq: flops_per_token(derived(Path(""), DATA_STAGES="", TRAIN_ITERS="1", SEQ=str(seq))).model
        for seq in (16, 512)
    }
    assert plain[512] > 1.1 * plain[16]
    for consumed, seq in ((0, 16), (4, 16), (6, 512)):
        speed = speed_of.of_step(consumed, 2, 0.5)
        assert speed.tokens_per_s == 2 * seq / 0.5
        assert speed.tflops_per_device == speed.tokens_per_s / 2 * plain[seq] / 1e12
        assert speed_of(speed.tokens_per_s, 1.0).tflops_per_device == speed.tflops_per_device


def test_without_stages_it_is_that_of_the_run() -> None:
    run = derived(Path(""), DATA_STAGES="", TRAIN_ITERS="1")
    speed = StageSpeed(run, 1, None).of_step(5, 3, 2.0)
    assert speed.tokens_per_s == 24
    assert speed.tflops_per_device == 24 * flops_per_token(run).model / 1e12
