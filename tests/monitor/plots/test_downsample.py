import numpy as np
import pytest

from megads.monitor.columns import Column
from megads.monitor.plots.downsample import downsample, holes_behind, moving_mean


def column_of(values, x=None):
    values = np.asarray(values, np.float32)
    return Column(np.arange(len(values), dtype=float) if x is None else np.asarray(x, float), values)


@pytest.mark.parametrize("place", [0, 1, 499_999, 654_321, 999_999])
def test_one_step_in_a_million_stays(place):
    values = np.ones(1_000_000, np.float32)
    values[place] = 25
    found = downsample(column_of(values), 700)
    assert len(found.x) == 700
    assert found.high.max() == 25
    assert abs(found.x[found.high.argmax()] - place) <= found.size
    assert found.low.min() == 1


def test_few_rows_are_kept_as_they_are():
    found = downsample(column_of(range(2100)), 700)
    assert found.low is None
    assert found.y.tolist() == list(range(2100))


def test_a_point_is_the_mean_of_its_rows_without_nans():
    values = np.float32([1, 3, np.nan, 5] * 1000)
    found = downsample(column_of(values), 1000)
    assert (found.y == 3).all()
    assert (found.low == 1).all()
    assert (found.high == 5).all()


def test_rows_of_nothing_but_nans_are_a_hole():
    values = np.float32([1] * 4000)
    values[1000:2000] = np.nan
    assert 240 < np.isnan(downsample(column_of(values), 1000).y).sum() <= 250


def test_the_moving_mean_is_centred():
    values = np.float32([1, 2, np.nan, 4, 5])
    assert moving_mean(values, 3).tolist() == pytest.approx([1.5, 1.5, 3, 4.5, 4.5])
    assert moving_mean(values, 2).tolist() == pytest.approx([1.5, 2, 4, 4.5, 5])
    assert moving_mean(values, 1) is values
    assert np.isnan(moving_mean(np.float32([np.nan, np.nan, np.nan, 1]), 3)).tolist() == [True, True, False, False]
    # A line stays where it is: the mean of the last rows would lag behind it.
    assert moving_mean(np.float32(range(100)), 21)[10:90].tolist() == list(range(10, 90))


def test_smoothing_keeps_the_rows_behind_the_line():
    found = downsample(column_of([0, 10] * 50), 700, smooth=10)
    assert found.high.tolist() == [0, 10] * 50
    assert found.y[20:80].tolist() == [5] * 60


def test_a_missing_stretch_breaks_the_line_and_a_wider_interval_does_not():
    x = [*range(100), *range(400, 500)]
    found = downsample(column_of(np.ones(200), x), 700)
    assert np.isnan(found.y).sum() == 1
    assert 99 < found.x[np.isnan(found.y)][0] < 400
    wider = [*range(100), *range(100, 2000, 10)]
    assert not holes_behind(np.array(wider, float)).any()
    assert not np.isnan(downsample(column_of(np.ones(200), x), 700, holes=False).y).any()
