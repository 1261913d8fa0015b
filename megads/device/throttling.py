"""Whether a device runs below its clock. Asked when steps are slow; the answer takes a moment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import torch

from megads.device.facts import identity
from megads.device.vendor import Vendor

BELOW = 0.85
"""Share of the highest clock; a device that computes at less is held back by heat or power."""

LOOK_S = 10.0
"""For an answer of the vendor's tool."""

ASKED = "clocks.sm,clocks.max.sm,temperature.gpu,power.draw,power.limit"
"""Of nvidia-smi: MHz now and at most, degrees Celsius, watts now and at most."""


def below_clock(row: Vendor, device: torch.device, ask: Callable[[Sequence[str]], str] | None = None) -> str:
    """Return ``1200 of 1980 MHz, 87 C, 690 of 700 W``; empty where the clock is high, or the vendor does not say.

    Only NVIDIA's tool is asked. The highest clock is that of the product: few devices hold it in matrix products
    at full power, so that a clock up to a sixth below it is no finding.
    """
    name = identity(row, device) if row.name == "nvidia" else ""
    if not name:
        return ""
    which = name if ":" in name else f"GPU-{name.removeprefix('GPU-')}"
    text = (ask or _ask)(["nvidia-smi", "-i", which, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"])
    return clock_line(text)


def clock_line(text: str) -> str:
    """Return what an answer of nvidia-smi shows; empty where the clock is high, or the answer is none."""
    words = [word.strip() for word in text.splitlines()[0].split(",")] if text.strip() else []
    numbers = [_number(word) for word in words]
    if len(numbers) != len(ASKED.split(",")) or not numbers[0] or not numbers[1] or numbers[0] >= BELOW * numbers[1]:
        return ""
    now, most, degrees, watts, limit = numbers
    heat = f", {degrees:.0f} C" if degrees else ""
    power = f", {watts:.0f} of {limit:.0f} W" if watts and limit else ""
    return f"{now:.0f} of {most:.0f} MHz{heat}{power}"


def _number(word: str) -> float:
    """Return a word as a number, 0 for one such as ``[N/A]``."""
    try:
        return float(word)
    except ValueError:
        return 0.0


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S)
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if not done.returncode else ""
