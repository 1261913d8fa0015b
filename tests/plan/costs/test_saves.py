"""Checkpoints of a run, counted; tests/launch/preflight/test_disk_space.py compares how many stay, step by step."""

from __future__ import annotations

from megads.plan.costs.saves import Saves, bytes_per_save, saves_of, saves_until
from megads.plan.memory import count_parameters
from tests.checkpoint.faked import derived


def test_masters_and_moments_are_float32_for_every_dtype():
    for dtype in ("fp32", "bf16", "fp16"):
        run = derived(DTYPE=dtype)
        assert bytes_per_save(run) == 12 * count_parameters(run.model)
    assert bytes_per_save(derived(SAVE_OPTIM="0")) == 4 * count_parameters(run.model)
    assert bytes_per_save(derived(OPTIMIZER="sgd", SGD_MOMENTUM="0.9")) == 8 * count_parameters(run.model)


def test_what_is_written_and_what_stays():
    each = bytes_per_save(derived())
    assert saves_of(derived(TRAIN_ITERS="200", SAVE_INTERVAL="60")) == Saves(each, 4, 4, 4)
    assert saves_of(derived(TRAIN_ITERS="200", SAVE_INTERVAL="60", CKPT_KEEP="1")) == Saves(each, 4, 1, 2)
    for last in range(1, 30):
        for every in range(8):
            steps = {*range(every, last + 1, every), last} if every else {last}
            for step in range(last + 1):
                assert saves_until(step, every, last) == sum(each <= step for each in steps)
