"""Which tokens windows score, and what they see."""

from __future__ import annotations

import pytest

from megads.evaluate.windows import Window, Windows, lengths_of, rolling, samples, sliding


def _windows(length, spans):
    return Windows.of([(range(100, 100 + length), spans)])


def _scored(windows):
    return [token for window in windows for token in window.tokens[-window.scored :]]


@pytest.mark.parametrize("length", [2, 5, 9, 10, 11, 12, 30, 31])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_sliding_windows_score_every_token_but_the_first_once(length, stride):
    windows = _windows(length, sliding(length, 8, stride))
    assert _scored(windows) == [*range(101, 100 + length)]
    assert all(len(window.tokens) <= 9 for window in windows)
    # A later target sees at least context - stride + 1 tokens.
    assert all(len(window.tokens) - window.scored >= 8 - stride + 1 for window in windows[1:])


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 18, 31])
def test_rolling_windows_score_every_token_once_and_see_as_much_as_fits(length):
    windows = _windows(length, rolling(length, 8))
    assert _scored(windows) == [*range(101, 100 + length)]
    assert windows[0].tokens[0] == 100
    assert all(len(window.tokens) == 9 for window in windows[1:])


@pytest.mark.parametrize("length", [2, 8, 9, 10, 17, 18, 31])
def test_samples_see_nothing_of_the_one_before(length):
    windows = _windows(length, samples(length, 8))
    assert _scored(windows) == [*range(101, 100 + length)]
    assert all(len(window.tokens) == window.scored + 1 for window in windows)
    assert all(window.scored == 8 for window in windows[:-1])


def test_windows_of_several_texts_hold_every_token_once():
    windows = Windows.of([([5, 6, 7, 8], [(0, 3, 2), (1, 4, 1)]), ([], []), ([9, 10], [(0, 2, 1)])])
    assert [*windows] == [Window([5, 6, 7], 2), Window([6, 7, 8], 1), Window([9, 10], 1)]
    assert windows.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert lengths_of(windows) == lengths_of([*windows]) == [3, 3, 2]
    assert len(Windows.of([])) == 0
