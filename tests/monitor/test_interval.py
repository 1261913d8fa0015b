"""The lines of a step: ours, and the one that programs of Megatron-LM's users look for."""

from __future__ import annotations

import math
import re

import pytest

from megads.monitor.interval import Interval, megatron_line, megatron_validation_line, step_line
from megads.monitor.throughput import Speed, mfu_text

FIELDS = re.compile(r"([A-Za-z/()][\w /()-]*?): +([-+.\dEen]+)(?: \||$)")


def line_of(interval: Interval, iteration: int = 20) -> str:
    return megatron_line(iteration, 100, 160, interval, lr=1.5e-4, batch=8, loss_scale=65536.0, grad_norm=1.23456)


def interval_of(*steps: tuple[float, float, bool]) -> Interval:
    found = Interval()
    for loss, seconds, skipped in steps:
        found.add(loss, Speed(seconds, 800 / seconds, 400 / seconds, 50 / seconds, None), skipped=skipped)
    return found


def test_the_line_is_the_one_of_the_family():
    assert line_of(interval_of((6.231234, 0.5, False))) == (
        " iteration       20/     100 | consumed samples:          160 | elapsed time per iteration (ms): 500.0 |"
        " throughput per GPU (TFLOP/s/GPU): 100.0 | learning rate: 1.500000E-04 | global batch size:     8 |"
        " lm loss: 6.231234E+00 | loss scale: 65536.0 | grad norm: 1.235 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |"
    )


def test_what_is_asked_for_besides_stands_where_the_family_has_it():
    interval = interval_of((6.0, 0.5, False))
    more = {"num_zeros": 1234, "params_norm": 56.78912}
    line = megatron_line(20, 100, 160, interval, lr=1e-4, batch=8, loss_scale=1.0, grad_norm=1.0, **more)
    assert " grad norm: 1.000 | num zeros: 1234.0 | params norm: 56.789 | number of skipped iterations:   0 |" in line


@pytest.mark.parametrize("prefix", ["", "2026-11-21 23:46:09,515 ", "[default7]:"])
def test_parsers_find_its_fields(prefix):
    line = prefix + line_of(interval_of((6.0, 0.5, False)))
    assert re.search(r"iteration +(\d+)/ *(\d+) \|", line).groups() == ("20", "100")
    assert float(re.search(r"lm loss: ([\d.E+-]+) \|", line)[1]) == 6.0
    assert float(re.search(r"elapsed time per iteration \(ms\): ([\d.]+)", line)[1]) == 500.0
    assert float(re.search(r"TFLOP/s/GPU\): ([\d.]+)", line)[1]) == 100.0
    found = {name.strip(): float(value) for name, value in FIELDS.findall(line.split("|", 1)[1])}
    assert found == {
        "consumed samples": 160,
        "elapsed time per iteration (ms)": 500.0,
        "throughput per GPU (TFLOP/s/GPU)": 100.0,
        "learning rate": 1.5e-4,
        "global batch size": 8,
        "lm loss": 6.0,
        "loss scale": 65536.0,
        "grad norm": 1.235,
        "number of skipped iterations": 0,
        "number of nan iterations": 0,
    }
    assert len(line.split(" | ")) == 11


def test_means_are_over_the_steps_that_were_not_skipped_and_times_over_all():
    interval = interval_of((4.0, 0.5, False), (9.0, 1.0, True), (math.nan, 0.5, True), (5.0, 2.0, False))
    line = line_of(interval)
    assert "lm loss: 4.500000E+00 |" in line
    assert "elapsed time per iteration (ms): 1000.0 |" in line
    assert "TFLOP/s/GPU): 50.0 |" in line
    assert "skipped iterations:   2 | number of nan iterations:   1 |" in line
    speed = interval.speed
    assert (speed.step_time_s, speed.tokens_per_s, speed.tokens_per_s_per_device) == (1.0, 800.0, 400.0)
    assert speed.mfu is None


def test_without_a_step_that_counted_there_is_no_loss():
    assert "lm loss" not in line_of(interval_of((4.0, 0.5, True)))


def test_the_line_of_a_validation():
    line = megatron_validation_line(100, {"lm_loss": (2.5, math.exp(2.5))})
    assert line == " validation loss at iteration 100 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 |"


def test_step_line_reads_left_to_right():
    speed = Speed(0.5, 8192, 4096, 0.1, None)
    line = step_line(7, 200, 5.4321, 2e-4, 1.25, speed, 96.5)
    assert line == "step   7/200 | loss  5.4321 | lr 2.00e-04 | grad norm   1.250 | 8.19k tok/s | 0.500s | ETA  1m36s"


def test_loss_scale_and_mfu_are_shown_when_they_mean_something():
    line = step_line(7, 200, 5.4, 2e-4, 1.25, Speed(0.5, 8192, 4096, 0.1, 0.412), 96, scale=65536.0)
    assert "| scale 65536 |" in line
    assert "| mfu 41.2% |" in line


def test_both_conventions_of_the_mfu_are_shown():
    assert mfu_text(None, None, None) == ""
    assert mfu_text(0.412, 0.412, 0.389) == "mfu 41.2% (causal 38.9%)"
    assert mfu_text(0.389, 0.412, 0.389) == "mfu 38.9% (full 41.2%)"
    assert mfu_text(0.412, 0.412, 0.412) == "mfu 41.2%"  # an encoder's attention is not causal
    speed = Speed(0.5, 8192, 4096, 0.1, 0.412, mfu_full=0.412, mfu_causal=0.389)
    assert "| mfu 41.2% (causal 38.9%) |" in step_line(7, 200, 5.4, 2e-4, 1.25, speed, 96)


def test_a_batch_that_grows_is_shown():
    line = step_line(7, 200, 5.4, 2e-4, 1.25, Speed(0.5, 8192, 4096, 0.1, None), 96, batch=48)
    assert "| grad norm   1.250 | batch 48 | 8.19k tok/s" in line


def test_waiting_for_data_is_shown_when_it_matters():
    speed = Speed(0.5, 8192, 4096, 0.1, None)
    assert "stall" not in step_line(7, 200, 5.4, 2e-4, 1.25, speed, 96, waited=0.05)
    assert "| 0.500s | data stall 30% | ETA" in step_line(7, 200, 5.4, 2e-4, 1.25, speed, 96, waited=0.3)


def test_a_skipped_step_is_reported():
    line = step_line(
        7, 200, 5.4, 2e-4, float("inf"), Speed(0.5, 8192, 4096, 0.1, None), 96, skipped="gradient is NaN or Inf"
    )
    assert line.endswith("SKIPPED, gradient is NaN or Inf")


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


def test_terms_of_a_loss_are_shown_and_stand_for_it():
    interval = Interval()
    for lm, sop in ((6.0, 0.5), (8.0, 1.0)):
        terms = {"lm_loss": lm, "sop_loss": sop}
        interval.add(lm + sop, Speed(0.5, 8192, 4096, 0.1, None), skipped=False, terms=terms)
    interval.add(99.0, Speed(0.5, 8192, 4096, 0.1, None), skipped=True, terms={"lm_loss": 98.0, "sop_loss": 1.0})
    assert interval.mean_terms == {"lm_loss": 7.0, "sop_loss": 0.75}
    assert " lm loss: 7.000000E+00 | sop loss: 7.500000E-01 |" in line_of(interval)
    line = step_line(7, 9, interval.loss, 2e-4, 1.25, interval.speed, 96.5, terms=interval.mean_terms)
    assert line.startswith("step 7/9 | loss  7.7500 (lm 7.0000, sop 0.7500) | lr 2.00e-04 |")
    line = megatron_validation_line(5, {"lm_loss": (2.0, 4.0), "sop_loss": (0.5, 1.5)})
    assert line.endswith("PPL: 4.000000E+00 | sop loss value: 5.000000E-01 | sop loss PPL: 1.500000E+00 |")
