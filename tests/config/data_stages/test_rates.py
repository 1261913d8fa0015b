from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.data_stages.rates import Piece, rate_at
from megads.config.schedule.rates import Schedule
from tests.config.data_stages.files import derived, write_stages

ONE = {
    "{warmup: 25%, to: 0, shape: cosine}": {"LR_DECAY_STYLE": "cosine", "LR_WARMUP_FRAC": "0.25"},
    "{warmup: 3 iters, to: 1e-4, shape: linear}": {
        "LR_DECAY_STYLE": "linear",
        "LR_WARMUP_ITERS": "3",
        "MIN_LR": "1e-4",
    },
    "{warmup: 10 samples, to: 1e-5, shape: sqrt, cooldown: 40%}": {
        "LR_DECAY_STYLE": "wsd",
        "LR_WARMUP_SAMPLES": "10",
        "COOLDOWN": "0.4",
        "MIN_LR": "1e-5",
    },
    "{warmup: 64 tokens}": {"LR_DECAY_STYLE": "constant", "LR_WARMUP_TOKENS": "64"},
}


@pytest.mark.parametrize("lr", ONE)
def test_one_stage_is_the_schedule_of_a_run(tmp_path: Path, lr: str) -> None:
    run = derived(write_stages(tmp_path, f"stages:\n- {{iters: 20, lr: {lr}}}\n"))
    plain = derived(Path(""), **{**ONE[lr], "TRAIN_ITERS": "20", "DATA_STAGES": ""})
    found, expected = Schedule.of(run), Schedule.of(plain)
    for samples in range(41):
        assert found.lr(samples) == pytest.approx(expected.lr(samples), rel=1e-12, abs=1e-18)
        assert found.at(samples).weight_decay == expected.at(samples).weight_decay


def test_stages_continue_each_other(tmp_path: Path) -> None:
    text = """stages:
- {name: a, iters: 4, lr: {warmup: 2 iters, peak: 0.4}}
- {name: b, iters: 2}
- {name: c, iters: 4, lr: {to: 0.2, shape: linear}}
- {name: d, iters: 1, lr: 0.05}
- {name: e, iters: 4, lr: {warmup: 50%, peak: 0.1, to: 0, shape: linear, cooldown: 1 iters}}
"""
    schedule = Schedule.of(derived(write_stages(tmp_path, text)))
    rates = [schedule.lr(samples) for samples in range(0, 30, 2)]
    expected = [0, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4, 0.35, 0.3, 0.25, 0.05, 0.05, 0.075, 0.1, 0.1]
    assert rates == pytest.approx(expected)
    assert schedule.lr(29) == pytest.approx(0.05)
    assert schedule.lr(30) == schedule.lr(1000) == 0
    assert list(schedule.borders()) == [
        *("warm-up of a", "constant of a", "constant of b", "decay of c", "constant of d"),
        *("warm-up of e", "constant of e", "decay of e"),
    ]


def test_a_jump_is_at_the_border() -> None:
    pieces = (Piece("a", 0, 4, 1.0, 1.0), Piece("b", 4, 8, 0.5, 0.0))
    assert [rate_at(pieces, samples) for samples in (0, 3, 4, 6, 8, 9)] == [1, 1, 0.5, 0.25, 0, 0]
