"""Settings of what a run does when its numbers go wrong."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from tests.config.settings.given import given


def test_an_option_takes_the_word_of_the_variable():
    names = ("stability.on_spike", "stability.on_nan", "stability.deterministic")
    assert given(names) == ("none", "skip", False)
    assert given(names, {"--on-spike": "rollback", "--deterministic-mode": ""}) == ("rollback", "skip", True)
    with pytest.raises(ConfigError, match="'none' is not one of skip, stop, rollback"):
        given(names, ON_NAN="none")


@pytest.mark.parametrize(("value", "words"), [("2", "2 must be at least 3"), ("1001", "1001 must be at most 1000")])
def test_a_median_needs_losses_and_not_too_many(value, words):
    with pytest.raises(ConfigError, match=f"env SPIKE_WINDOW: {words}"):
        given((), SPIKE_WINDOW=value)
