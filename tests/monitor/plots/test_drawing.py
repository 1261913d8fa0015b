import numpy as np
import pytest

from megads.errors import ConfigError
from megads.monitor.plots.drawing import draw
from megads.monitor.plots.source import read_run
from tests.monitor.plots.made import rows_of, write_rows


def run_of(folder, rows, name="a"):
    return read_run(write_rows(folder, rows).parent, lambda key: True, name)


def names(drawing):
    return [chart.panel.name for chart in drawing.charts]


def test_a_usual_run_shows_what_it_has(tmp_path):
    drawing = draw([run_of(tmp_path, rows_of(200))], most=700)
    assert names(drawing) == ["loss", "validation", "lr", "grad_norm", "tokens", "mfu", "wait", "memory"]
    assert drawing.charts[1].keys == ("valid_loss", "valid_loss/books", "valid_loss/web")


TIMES = {"time/forward_s": 0.01, "time/backward_s": 0.02, "time/save_s": 9.0}


def test_times_of_one_run_are_stacked_shares_of_the_step_and_stand_for_the_wait(tmp_path):
    drawing = draw([run_of(tmp_path, rows_of(40, step_time_s=0.04, **TIMES))], most=700)
    chart = drawing.charts[names(drawing).index("times")]
    assert [curve.label for curve in chart.curves] == ["forward", "backward"]
    assert [float(curve.points.y[0]) for curve in chart.curves] == pytest.approx([25, 75])
    assert [float(curve.base[0]) for curve in chart.curves] == pytest.approx([0, 25])
    assert "wait" not in names(drawing)


def test_times_of_several_runs_are_one_bar_each(tmp_path):
    runs = [
        run_of(tmp_path / name, rows_of(40, step_time_s=step, **TIMES), name)
        for name, step in (("a", 0.04), ("b", 0.1))
    ]
    drawing = draw(runs, most=700)
    chart = drawing.charts[names(drawing).index("times")]
    assert chart.curves == ()
    assert [pytest.approx(bar) for bar in chart.bars] == [(25, 50), (10, 20)]
    one = draw([run_of(tmp_path / "c", rows_of(1, step_time_s=0.04, **TIMES))], most=700)
    assert len(one.charts[names(one).index("times")].bars) == 1  # an area needs two steps


def test_several_runs_have_training_and_validation_and_each_corpus_apart(tmp_path):
    drawing = draw([run_of(tmp_path / name, rows_of(100), name) for name in "abc"], most=700)
    assert names(drawing)[:4] == ["loss", "validation", "valid_loss/books", "valid_loss/web"]
    assert [chart.keys for chart in drawing.charts[:2]] == [("lm_loss",), ("valid_loss",)]
    # Colour says which run; no chart needs dashes as well.
    assert {drawing.dash(chart, curve) for chart in drawing.charts for curve in chart.curves} == {0}
    assert max(len(chart.curves) for chart in drawing.charts) == 3


def test_a_key_has_the_same_colour_in_every_chart(tmp_path):
    drawing = draw([run_of(tmp_path, rows_of(200))], most=700)
    colours = {}
    for chart in drawing.charts[:2]:
        for curve in chart.curves:
            colours.setdefault(curve.key, set()).add(drawing.colour(chart, curve))
    assert colours == {"lm_loss": {0}, "valid_loss": {1}, "valid_loss/books": {2}, "valid_loss/web": {3}}


def test_equal_curves_are_known(tmp_path):
    other = [{**row, "learning_rate": 1e-3} for row in rows_of(100)]
    runs = [
        run_of(tmp_path / name, rows, name) for name, rows in (("a", rows_of(100)), ("b", rows_of(100)), ("c", other))
    ]
    drawing = draw(runs, keys=["lr"], most=700)
    assert [drawing.behind(drawing.charts[0], curve) for curve in drawing.charts[0].curves] == [1, 0, 0]


def test_axes_say_where_an_iteration_is(tmp_path):
    run = run_of(tmp_path, rows_of(100, step_time_s=36.0))
    assert draw([run], axis="tokens", most=9).at(0, np.array([50.0]))[0] == 50 * 8 * 2048
    assert draw([run], axis="hours", most=9).at(0, np.array([50.0]))[0] == pytest.approx(0.5)
    assert draw([run], axis="iteration", most=9).at(0, np.array([50.0]))[0] == 50


def test_an_axis_that_a_run_does_not_have_is_named(tmp_path):
    run = run_of(tmp_path, [{"iteration": i, "lm_loss": 1.0} for i in range(1, 5)])
    with pytest.raises(
        ConfigError, match="no consumed_tokens in it, so --x tokens is not available; use --x iteration"
    ):
        draw([run], axis="tokens", most=9)


def test_a_spike_far_above_makes_the_scale_logarithmic(tmp_path):
    rows = rows_of(200)
    assert not draw([run_of(tmp_path, rows)], most=700).charts[0].log
    rows[100]["lm_loss"] = 5000.0
    assert draw([run_of(tmp_path, rows)], most=700).charts[0].log


def test_schedules_and_peaks_are_never_smoothed(tmp_path):
    drawing = draw([run_of(tmp_path, rows_of(100, every=999))], smooth=50, most=700)
    by_name = dict(zip(names(drawing), drawing.charts, strict=True))
    assert by_name["lr"].curves[0].points.low is None
    assert by_name["memory"].curves[0].points.low is None
    assert by_name["loss"].curves[0].points.low is not None
