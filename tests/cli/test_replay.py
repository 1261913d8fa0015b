"""``megads replay``: what it prints, and its exit codes. Runs are replayed in tests/accidents/test_09_*."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import megads.train.numbers.replay as module
from megads.cli.replay import replay
from megads.train.numbers.replay import Replayed
from tests.train.numbers.test_kept import KEPT, ORIGIN

RUN = "run      step 7 on rank 3 (b): Inf in 3 of 32 elements of aten.mul.Tensor in the forward pass of layers.0.mlp"


@pytest.mark.parametrize(
    ("origin", "is_exact", "code", "lines"),
    [
        (ORIGIN, True, 0, ["weights  w: the weights of the step", "same     operator, layer and pass"]),
        (
            replace(ORIGIN, layer="head"),
            False,
            0,
            ["weights  w: not those of the step, which had 6", "other    operator"],
        ),
        (None, True, 1, ["here     every number is finite on one rank: suspect the device"]),
    ],
)
def test_what_is_printed(monkeypatch, origin, is_exact, code, lines):
    monkeypatch.setattr(module, "replay", lambda folder, env: Replayed(KEPT, origin, 2.5, Path("w"), is_exact))
    result = CliRunner().invoke(replay, ["runs/a/nonfinite-0000007"])
    assert result.exit_code == code
    assert result.output.startswith(RUN)
    assert "batch    2 samples from number 52; loss 2.5\n" in result.output
    for line in lines:
        assert line in result.output
