"""A sweep of the learning rate: which rates it tries, what it makes of losses, what it leaves."""

import csv
import math

import pytest

from megads.config.schedule_settings import LrFinderConfig
from megads.monitor.sweep import Sweep


def sweep(losses, *, iters=7, smoothing=0.0, **more) -> Sweep:
    made = Sweep(LrFinderConfig(enabled=True, iters=iters, smoothing=smoothing, **more))
    for loss in losses:
        assert not made.is_over
        made.add(loss)
    return made


def test_rates_rise_by_a_constant_factor_from_the_lowest_to_the_highest():
    made = sweep([5.0] * 7)
    assert [point.lr for point in made.points] == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert made.points[-1].lr == 1.0
    assert made.is_over
    assert not made.has_diverged


def test_the_smoothed_loss_is_not_drawn_to_zero_at_the_start():
    made = sweep([3.0, 5.0], smoothing=0.98)
    assert made.points[0].smoothed == pytest.approx(3.0)
    # (0.98 x 0.02 x 3 + 0.02 x 5) / (1 - 0.98 x 0.98)
    assert made.points[1].smoothed == pytest.approx(0.1588 / 0.0396)
    assert sweep([4.0] * 6, smoothing=0.98).points[-1].smoothed == pytest.approx(4.0)


@pytest.mark.parametrize(("last", "diverged"), [(2.99, False), (3.01, True), (math.nan, True), (math.inf, True)])
def test_it_is_over_when_the_loss_is_half_as_large_again_as_the_smallest(last, diverged):
    made = sweep([4.0, 2.0, last])
    assert (made.has_diverged, made.is_over) == (diverged, diverged)


def test_the_steepest_descent_is_suggested():
    # Flat, then 4 down between 1e-4 and 1e-2, most of it behind 1e-3, then up.
    assert sweep([9.0, 9.0, 9.0, 8.0, 5.0, 4.9, 7.0]).suggestion().lr == pytest.approx(1e-3)
    assert sweep([4.0, 4.1, 4.2, 4.3]).suggestion() is None
    assert sweep([4.0]).suggestion() is None
    assert sweep([]).suggestion() is None
    assert sweep([9.0, 8.0, 5.0, math.nan]).suggestion().lr == pytest.approx(1e-5)


def test_what_is_measured_is_a_table_and_a_picture(tmp_path):
    made = sweep([9.0, 8.0, 5.0, math.nan])
    made.write(tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert float(rows[1].pop("learning_rate")) == pytest.approx(1e-5)
    assert rows[1] == {"iteration": "2", "lm_loss": "8.0", "smoothed_loss": "8.0"}
    assert [row["iteration"] for row in rows] == ["1", "2", "3", "4"]
    made.draw(tmp_path / "t.png", "a run")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
