"""The shares of train, valid and test in a run's data."""

from __future__ import annotations

import math
import re

from megads.config.schema import RunConfig
from megads.errors import ConfigError

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_split(text: str) -> tuple[float, float, float]:
    """Return the shares of train, valid and test of a text such as ``969,30,1``.

    One to three numbers, with commas, slashes or blanks between them; missing ones are 0.

    Raises:
        ConfigError: the text is not that, or all shares are 0.
    """
    words = re.split(r"[\s,/]+", text.strip().strip("[]()").strip())
    if not 1 <= len(words) <= 3 or not all(_NUMBER.fullmatch(word) for word in words):
        raise ConfigError(f"SPLIT={text}: expected the shares of train, valid and test, e.g. 969,30,1")
    shares = [*map(float, words), 0.0, 0.0][:3]
    if not (all(map(math.isfinite, shares)) and sum(shares) > 0):
        raise ConfigError(f"SPLIT={text}: at least one share must be positive, and none infinite")
    return shares[0], shares[1], shares[2]


def shares_of(run: RunConfig) -> tuple[float, float, float]:
    """Return the shares of train, valid and test in the run's data.

    A split with files of its own has none; what it would have had is trained on.

    Raises:
        ConfigError: ``SPLIT`` is not understood.
    """
    data = run.data
    train, valid, test = parse_split(data.split) if data.split else (data.train_split, data.val_split, data.test_split)
    if data.held_out("valid").text:
        train, valid = train + valid, 0.0
    if data.held_out("test").text:
        train, test = train + test, 0.0
    return train, valid, test
