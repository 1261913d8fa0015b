"""Round values for an axis, and labels of one kind for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
LETTERS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k"))  # from where on, and the letter
UNITS = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3}
SMALL = 1e-3  # below: as 3e-4


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` + 1 round values from ``low`` to ``high``, at equal distances."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in STEPS if each * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values between two positive ones for a logarithmic axis."""
    within = (1, 2, 5) if high / low < 30 else (1, 3) if high / low < 300 else (1,)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    found = [each * 10.0**power for power in powers for each in within if low <= each * 10.0**power <= high]
    if len(found) < 2:
        return [value for value in round_ticks(low, high, 4) if value > 0]
    return found[:: -(-len(found) // most)]


def tick_labels(values: Sequence[float], *, log: bool = False) -> list[str]:
    """Return the values as text, all of one kind: with one letter, with one exponent, or with equally many decimals.

    On a logarithmic axis each value stands for itself.
    """
    if log and values and min(values) < SMALL:
        return [f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e") for value in values]
    if log:
        return [_alone(value) for value in values]
    most = max((abs(value) for value in values), default=0.0)
    letter = next((letter for least, letter in LETTERS if most >= least), "")
    if letter:
        return _alike([value / UNITS[letter] for value in values], letter)
    if 0 < most < SMALL:
        power = math.floor(math.log10(most) + 1e-9)
        return _alike([value / 10.0**power for value in values], f"e{power}")
    return _alike(values, "")


def _alike(values: Sequence[float], end: str) -> list[str]:
    decimals = next((n for n in range(7) if all(abs(value - round(value, n)) < 1e-7 for value in values)), 6)
    return ["0" if value == 0 and end else f"{value:.{decimals}f}{end}" for value in values]


def _alone(value: float) -> str:
    letter = next((letter for least, letter in LETTERS if abs(value) >= least), "")
    return f"{value / UNITS[letter]:.4g}{letter}" if letter else f"{value:.4g}"
