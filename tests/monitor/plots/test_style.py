"""Ticks are round, and the labels of an axis are of one kind."""

import pytest

from megads.monitor.plots.style import log_ticks, round_ticks, tick_labels


@pytest.mark.parametrize(
    ("low", "high", "most", "labels"),
    [
        (0, 3e-4, 6, ["0", "0.5e-4", "1.0e-4", "1.5e-4", "2.0e-4", "2.5e-4", "3.0e-4"]),
        (294e3, 326e3, 6, ["300k", "310k", "320k"]),
        (1.9, 10.2, 6, ["2", "4", "6", "8", "10"]),
        (37.4, 39.1, 6, ["37.5", "38.0", "38.5", "39.0"]),
        (0, 12_345_678, 6, ["0", "2.5M", "5.0M", "7.5M", "10.0M"]),
        (-1, 1, 4, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        (4, 4, 5, ["4"]),
    ],
)
def test_ticks_are_round_and_labels_alike(low, high, most, labels):
    assert tick_labels(round_ticks(low, high, most)) == labels


def test_ticks_of_a_logarithmic_axis():
    assert tick_labels(log_ticks(0.4, 420), log=True) == ["1", "10", "100"]
    assert tick_labels(log_ticks(2e-6, 0.5, 3), log=True) == ["1e-5", "1e-3", "1e-1"]
    assert tick_labels(log_ticks(2, 9), log=True) == ["2", "5"]
