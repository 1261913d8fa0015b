import math

import pytest

from megads.config.estimate.flops import Flops
from megads.monitor.step_line import step_line
from megads.monitor.throughput import Remaining, Speed, SpeedOf
from megads.text.units import count, duration, four_digits, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12, "12"), (999, "999"), (1234, "1.23k"), (1_234_567, "1.23M"), (7e9, "7B"), (4.67e12, "4.67T")],
)
def test_count(value, text):
    assert count(value) == text


@pytest.mark.parametrize(("value", "text"), [(512, "512 B"), (2048, "2 KiB"), (3 * 2**30, "3 GiB"), (2**41, "2 TiB")])
def test_size(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4s"), (65, "1m05s"), (7380, "2h03m"), (273600, "3d04h"), (math.nan, "?")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_step_line_reads_left_to_right():
    speed = Speed(0.5, 8192, 4096, 0.1, None)
    line = step_line(7, 200, 5.4321, 2e-4, 1.25, speed, 96.5)
    assert line == "step   7/200 | loss  5.4321 | lr 2.00e-04 | grad norm   1.250 | 8.19k tok/s | 0.500s | ETA  1m36s"


def test_loss_scale_and_mfu_are_shown_when_they_mean_something():
    line = step_line(7, 200, 5.4, 2e-4, 1.25, Speed(0.5, 8192, 4096, 0.1, 0.412), 96, scale=65536.0)
    assert "| scale 65536 |" in line
    assert "| mfu 41.2% |" in line


def test_a_batch_that_grows_is_shown():
    line = step_line(7, 200, 5.4, 2e-4, 1.25, Speed(0.5, 8192, 4096, 0.1, None), 96, batch=48)
    assert "| grad norm   1.250 | batch 48 | 8.19k tok/s" in line


def test_waiting_for_data_is_shown_when_it_matters():
    speed = Speed(0.5, 8192, 4096, 0.1, None)
    assert "stall" not in step_line(7, 200, 5.4, 2e-4, 1.25, speed, 96, waited=0.05)
    assert "| 0.500s | data stall 30% | ETA" in step_line(7, 200, 5.4, 2e-4, 1.25, speed, 96, waited=0.3)


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


def test_a_skipped_step_is_told():
    line = step_line(
        7, 200, 5.4, 2e-4, float("inf"), Speed(0.5, 8192, 4096, 0.1, None), 96, skipped="gradient is NaN or Inf"
    )
    assert line.endswith("SKIPPED, gradient is NaN or Inf")


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


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4811, "0.481s"), (1.4, "1.40s"), (9.999, "10.0s"), (12.34, "12.3s"), (59.99, "1m00s"), (125, "2m05s")],
)
def test_measured_times_have_one_form(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(10.4, "10.4"), (2554.2, "2554"), (10080, "10.1k"), (math.inf, "inf")])
def test_a_perplexity_has_no_exponent(value, text):
    assert four_digits(value) == text


def test_the_columns_of_steps_are_as_wide_in_every_step():
    lines = [
        step_line(7, 200, loss, 2e-4, norm, Speed(step_s, rate, rate, 0.1, None), eta)
        for loss, norm, step_s, rate, eta in (
            (7.8, 4.473, 0.48, 4260, 72),
            (12.25, 0.5, 1.4, 12, 4),
            (5.5, 101.25, 61, 999_999, 7380),
        )
    ]
    assert len({tuple(at for at, letter in enumerate(line) if letter == "|") for line in lines}) == 1
