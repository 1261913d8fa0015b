"""Speeds count all ranks; the time left goes with samples."""

import math

import pytest

from megads.monitor.throughput import Remaining, SpeedOf
from megads.plan.flops import Flops


def test_speed_counts_all_ranks_and_divides_by_them():
    speed = SpeedOf(Flops(model=1e9, recomputed=5e8), num_devices=4, peak_tflops=2.0)(4096, 0.5)
    assert speed.tokens_per_s == 8192
    assert speed.tokens_per_s_per_device == 2048
    assert speed.tflops_per_device == pytest.approx(2.048)
    assert speed.mfu == pytest.approx(1.024)
    assert speed.hardware_tflops_per_device == pytest.approx(1.5 * 2.048)
    assert speed.hfu == pytest.approx(1.5 * 1.024)


def test_unknown_peak_means_unknown_shares_of_it():
    speed = SpeedOf(Flops(1e9, 0.0), 4, None)(4096, 0.5)
    assert (speed.mfu, speed.hfu) == (None, None)
    assert speed.hardware_tflops_per_device == speed.tflops_per_device


def test_remaining_time_counts_what_lies_between_steps_but_not_the_first():
    clock = iter([100.0, 160.0, 161.0, 162.0, 163.0, 174.0])  # the first step is slow; a validation before the last
    remaining = Remaining(clock=lambda: next(clock))
    remaining.start()
    for _ in range(5):
        remaining.step_done(8)
    assert remaining.seconds(800) == 100 * (174 - 160) / 4


def test_remaining_time_goes_with_samples_while_the_batch_grows():
    clock = iter([0.0, 1.0, 3.0, 7.0])
    remaining = Remaining(clock=lambda: next(clock))
    remaining.start()
    for samples in (1, 2, 4):
        remaining.step_done(samples)
    assert remaining.seconds(60) == 60 * (7 - 1) / (2 + 4)


def test_remaining_time_is_unknown_before_there_is_anything_to_go_by():
    assert math.isnan(Remaining().seconds(10))
