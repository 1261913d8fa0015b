"""What nvidia-smi says about the clock of a device, and that other vendors are not asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.device import throttling
from megads.device.throttling import below_clock, clock_line
from megads.device.vendor import VENDORS


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("1200, 1980, 87, 690.12, 700.00\n", "1200 of 1980 MHz, 87 C, 690 of 700 W"),
        ("1200, 1980, [N/A], [N/A], 700.00\n", "1200 of 1980 MHz"),
        ("1800, 1980, 60, 690.12, 700.00\n", ""),
        ("[N/A], 1980, 60, 690.12, 700.00\n", ""),
        ("No devices were found\n", ""),
        ("", ""),
        ("\n", ""),
    ],
)
def test_answers(answer, line):
    assert clock_line(answer) == line


def test_the_rows_own_device_is_asked(monkeypatch):
    asked: list[Any] = []

    def ask(command: Any) -> str:
        asked.append(command)
        return "1200, 1980, 87, 690, 700\n"

    device: Any = torch.device("cpu")
    for given, which in (("ab-cd", "GPU-ab-cd"), ("00:1b:00", "00:1b:00"), ("GPU-ab", "GPU-ab")):
        monkeypatch.setattr(throttling, "identity", lambda row, device, given=given: given)
        row: Any = SimpleNamespace(name="nvidia")
        assert below_clock(row, device, ask).startswith("1200 of 1980 MHz")
        assert asked.pop()[1:3] == ["-i", which]
    assert below_clock(next(row for row in VENDORS if row.name == "cpu"), device, ask) == ""
    assert asked == []


def test_a_tool_that_is_missing_or_fails_says_nothing():
    assert throttling._ask(["/nonexistent/tool"]) == ""
    assert throttling._ask(["false"]) == ""
    assert throttling._ask(["echo", "1"]) == "1\n"
