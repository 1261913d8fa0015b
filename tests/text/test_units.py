import math

import pytest

from megads.text.units import count, duration, exact, four_digits, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12, "12"), (999, "999"), (1234, "1.23k"), (1_234_567, "1.23M"), (7e9, "7B"), (4.67e12, "4.67T")],
)
def test_count(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(512, "512 B"), (2048, "2 KiB"), (3 * 2**30, "3 GiB"), (2**41, "2 TiB"), (1440 * 2**40, "1,440 TiB")],
)
def test_size(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4s"), (65, "1m05s"), (7380, "2h03m"), (273600, "3d04h"), (math.nan, "?")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4811, "0.481s"), (1.4, "1.40s"), (9.999, "10.0s"), (12.34, "12.3s"), (59.99, "1m00s"), (125, "2m05s")],
)
def test_measured_times_have_one_form(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 ms"), (0.00876, "8.76 ms"), (0.0999, "99.9 ms"), (0.1, "0.1 s"), (12.34, "12.3 s"), (125, "2m05s")],
)
def test_times_that_are_compared_have_three_digits(value, text):
    assert exact(value) == text


@pytest.mark.parametrize(("value", "text"), [(10.4, "10.4"), (2554.2, "2554"), (10080, "10.1k"), (math.inf, "inf")])
def test_a_perplexity_has_no_exponent(value, text):
    assert four_digits(value) == text
