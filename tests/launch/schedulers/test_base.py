"""Times as schedulers write them."""

import pytest

from megads.launch.schedulers.base import parse_clock


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3:04", 184), ("2:03:04", 7384), ("1-02:03:04", 93784), ("1-02:03", 93780), ("100:00:00", 360000)],
)
def test_two_numbers_are_minutes_and_seconds_unless_days_come_first(text, seconds):
    assert parse_clock(text) == seconds


@pytest.mark.parametrize("text", ["", "4", "UNLIMITED", "1:2:3:4", "1:234", "-1:00"])
def test_what_is_not_a_time_is_none(text):
    assert parse_clock(text) is None
