"""Which tokens windows score, and what they see."""

from __future__ import annotations

import pytest

from megads.evaluate.score import rolling, sliding


@pytest.mark.parametrize("length", [2, 5, 9, 10, 11, 12, 30, 31])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_sliding_windows_score_every_token_but_the_first_once(length, stride):
    windows = sliding(range(length), 8, stride)
    scored = [token for window in windows for token in window.tokens[-window.scored :]]
    assert scored == [*range(1, length)]
    assert all(len(window.tokens) <= 9 for window in windows)
    # A later target sees at least context - stride + 1 tokens.
    assert all(len(window.tokens) - window.scored >= 8 - stride + 1 for window in windows[1:])


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 30])
def test_rolling_windows_score_every_token_once_and_see_as_much_as_fits(length):
    windows = rolling(range(100, 100 + length), 8, 0)
    scored = [token for window in windows for token in window.tokens[-window.scored :]]
    assert scored == [*range(100, 100 + length)]
    assert windows[0].tokens[0] == 0
    assert all(len(window.tokens) == 9 for window in windows[1:])
