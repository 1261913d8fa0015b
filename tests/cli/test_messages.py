"""Messages of the command line."""

from __future__ import annotations

from megads.cli.messages import shortened


def test_only_the_beginning_of_a_long_word_is_shown():
    whole = f"TP={'1' * 396} is too large"
    assert shortened(whole) == whole
    assert shortened(f"TP={'1' * 1200} is\ntoo large") == f"TP={'1' * 54}... (1,203 characters) is\ntoo large"
