"""The learning rate against values worked out by hand from Megatron's rules."""

import math

import pytest

from megads.config.schema import OptimConfig, RunConfig, TrainConfig
from megads.train.schedule import Schedule


def schedule(style: str, *, warmup: float = 20, decay: int = 120) -> Schedule:
    return Schedule(max_lr=1.0, min_lr=0.1, warmup_samples=warmup, decay_samples=decay, style=style)


@pytest.mark.parametrize(
    ("style", "samples", "expected"),
    [
        ("cosine", 0, 0.0),
        ("cosine", 5, 0.25),
        ("cosine", 20, 1.0),
        ("cosine", 70, 0.55),
        ("cosine", 45, 0.1 + 0.9 * (math.cos(math.pi / 4) + 1) / 2),
        ("cosine", 120, 0.1),
        ("cosine", 121, 0.1),
        ("linear", 70, 0.55),
        ("linear", 45, 0.1 + 0.9 * 0.75),
        ("linear", 1000, 0.1),
        ("constant", 10, 0.5),
        ("constant", 70, 1.0),
        ("constant", 1000, 1.0),
    ],
)
def test_rate_at_a_sample(style, samples, expected):
    assert schedule(style).lr(samples) == pytest.approx(expected, rel=1e-12)


def test_without_warmup_the_first_step_has_the_full_rate():
    assert schedule("cosine", warmup=0).lr(0) == 1.0


def test_lengths_count_samples():
    run = RunConfig(
        train=TrainConfig(global_batch=8, train_iters=100),
        optim=OptimConfig(lr=0.5, lr_decay_iters=100, lr_warmup_frac=0.1),
    )
    assert Schedule.of(run) == Schedule(0.5, 0.0, pytest.approx(80), 800, "cosine")


def test_warmup_iterations_win_over_the_fraction():
    run = RunConfig(
        train=TrainConfig(global_batch=8, train_iters=100),
        optim=OptimConfig(lr_decay_iters=100, lr_warmup_frac=0.1, lr_warmup_iters=5),
    )
    assert Schedule.of(run).warmup_samples == 40


def test_while_the_batch_grows_iterations_are_of_fewer_samples():
    run = RunConfig(
        train=TrainConfig(global_batch=16, train_iters=20, rampup_batch_size="4 4 60"),
        optim=OptimConfig(lr=0.5, lr_decay_iters=20, lr_warmup_iters=6),
    )
    ramp = 5 * 4 + 3 * 8 + 2 * 12
    assert Schedule.of(run) == Schedule(0.5, 0.0, 5 * 4 + 8, ramp + 10 * 16, "cosine")
