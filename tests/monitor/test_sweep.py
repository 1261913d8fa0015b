"""A sweep of the learning rate: which rates it tries, what it makes of losses, what it leaves."""

import csv
import math
import random

import pytest

from megads.config.settings.schedule import LrFinderConfig
from megads.monitor.sweep import Sweep
from tests.monitor.plots.test_picture import overlapping


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


# A sweep of the demo: TP=2 NLAYERS=10 LR_FINDER=1 bash train_7B.sh
DEMO = (
    *(7.815, 7.851, 7.872, 7.829, 7.869, 7.853, 7.836, 7.805, 7.825, 7.811, 7.851, 7.824),
    *(7.789, 7.797, 7.792, 7.790, 7.817, 7.841, 7.770, 7.826, 7.794, 7.740, 7.793, 7.750),
    *(7.754, 7.758, 7.749, 7.729, 7.737, 7.665, 7.718, 7.658, 7.604, 7.699, 7.566, 7.504),
    *(7.503, 7.475, 7.381, 7.394, 7.301, 7.172, 7.261, 7.080, 7.154, 7.160, 6.992, 6.960),
    *(6.780, 6.906, 6.800, 6.697, 6.558, 6.588, 6.491, 6.337, 6.049, 6.055, 6.138, 6.161),
    *(6.257, 5.843, 6.232, 5.723, 6.115, 6.012, 6.042, 5.929, 6.171, 6.233, 5.924, 6.082),
    *(5.846, 6.173, 6.043, 6.256, 6.657, 6.878, 6.783, 6.679, 6.713, 7.029, 6.503, 6.387),
    *(6.616, 6.785, 6.748, 6.465, 6.494, 6.563, 6.398, 6.468, 6.458, 6.767, 6.845, 6.981),
    *(6.600, 6.820, 7.056, 7.847),
)


def valley(rate, *, best=1e-3, edge=1e-1):
    """Return the loss of a sweep: it falls around ``best`` and explodes from ``edge`` on."""
    fallen = 1 / (1 + (best / rate) ** 2)
    return 8 - 3 * fallen + (rate / edge) ** 2


def swept(loss_of, *, iters=100, noise=0.0, **more):
    made, draw = Sweep(LrFinderConfig(enabled=True, iters=iters, smoothing=0.9, **more)), random.Random(3)
    while not made.is_over:
        made.add(loss_of(made.rate) + draw.gauss(0, noise))
    return made


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_steepest_descent_is_suggested(noise):
    found = swept(valley, noise=noise).suggestion()
    assert found.lr == pytest.approx(1e-3, rel=0.5)
    assert found.why == "where the loss falls fastest"
    assert found.lr < found.diverges / 10


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_never_more_than_a_tenth_of_where_it_diverges(noise):
    found = swept(lambda rate: valley(rate, best=1e-2, edge=3e-2), noise=noise).suggestion()
    assert found.lr == pytest.approx(found.diverges / 10)
    assert 1e-2 < found.diverges < 6e-2
    assert found.why.startswith("a tenth of 0.0")


def test_on_the_demo_the_suggestion_is_a_rate_that_trains():
    made = sweep(DEMO, iters=100, smoothing=0.98)
    # LR=2e-3 is what the preset trains with; the sweep begins to diverge at 0.04.
    assert 5e-4 < made.suggestion().lr < 5e-3


def test_the_mean_of_the_losses_around_a_step_does_not_lag():
    made = swept(lambda rate: 8 - math.log10(rate * 1e6), iters=100)
    assert [loss for _, loss in made.centred()] == pytest.approx([point.loss for point in made.points])
    assert made.points[50].smoothed > made.points[50].loss + 0.1


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            lambda: swept(valley, iters=15),
            "not enough steps: each rate is 2.7 times the one before; set LR_FINDER_ITERS=100",
        ),
        (lambda: swept(lambda rate: 9.0), "the loss does not fall clearly"),
        (lambda: swept(lambda rate: 0.05 * valley(rate, edge=1e3), noise=0.2), "the loss does not fall clearly"),
        (lambda: swept(lambda rate: 4 + math.log10(rate * 1e6)), "the loss does not fall clearly"),
        (lambda: swept(valley, lowest=1e-2), "the loss does not fall clearly"),
        (lambda: sweep([], iters=100), "not enough steps: 0 of at least 20"),
        (lambda: sweep([9.0, 5.0, math.nan], iters=100), "not enough steps: 2 of at least 20"),
    ],
    ids=["few", "flat", "noise", "rising", "begins late", "none", "diverges at once"],
)
def test_a_sweep_that_says_nothing_suggests_nothing(made, why):
    found = made().suggestion()
    assert found.lr is None
    assert found.why.startswith(why), found.why


def test_the_picture_shows_the_suggestion_and_where_it_diverges():
    figure = swept(valley, noise=0.05).render("a run")
    assert overlapping(figure) == []
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["each step", "centred mean"]
    assert axes.get_legend().get_texts()[2].get_text().startswith("suggested: 0.00")
    assert [text.get_text() for text in axes.texts if text.get_text() == "diverges"] == ["diverges"]


def test_what_is_measured_is_a_table_and_a_picture(tmp_path):
    made = sweep([9.0, 8.0, 5.0, math.nan])
    made.write(tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert float(rows[1].pop("learning_rate")) == pytest.approx(1e-5)
    assert rows[1] == {"iteration": "2", "lm_loss": "8.0", "smoothed_loss": "8.0"}
    assert [row["iteration"] for row in rows] == ["1", "2", "3", "4"]
    made.render("a run").savefig(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
