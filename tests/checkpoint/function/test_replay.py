"""Losses that agree are reported, others are refused with what may have changed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from megads.checkpoint.function.record import Batch, Record
from megads.checkpoint.function.replay import check_losses
from megads.errors import CheckpointError

WAS = {"megads": "1.0", "torch": "2.8", "engine": "native", "device": "cpu"}
RECORD = Record({"a": 1}, Batch("tokens", ((1, 2), (3, 4))), (2.5, 2.6), "fp32", WAS)


def _check(losses, made_with=WAS, products="fp32", **more):
    return check_losses(Path("run/iter_5"), RECORD, losses, products, 2, made_with, **more)


def test_equal_and_rounded_losses_agree():
    assert _check([2.5, 2.6]) == "loss 2.5500 on 2 stored rows as when it was saved (to the bit)"
    assert "differences up to 2e-06, rounding explains 2.6e-05" in _check([2.5, 2.600002])
    assert "rounding explains 0.012" in _check([2.5, 2.605], products="bf16")


@pytest.mark.parametrize("losses", [[2.5, 2.601], [2.5, 6.0], [2.5, math.nan], [math.inf, 2.6]])
def test_other_losses_are_refused_by_the_row_that_is_furthest_off(losses):
    with pytest.raises(CheckpointError) as caught:
        _check(losses)
    assert str(caught.value).startswith("run/iter_5: the model computes another function: loss ")
    assert f"row {2 - (losses[0] != 2.5)} differs by" in str(caught.value)
    assert "; 1 convention did not change, so code, a kernel or the hardware has" in str(caught.value)
    assert "versions, engine and device are the same, too" in str(caught.value)
    assert "ALLOW_CHANGES=replay" in str(caught.value)


def test_what_changed_besides_is_named():
    with pytest.raises(CheckpointError, match=r"changed: torch 2\.8 -> 2\.9, device cpu -> cuda\)"):
        _check([2.5, 3.0], {**WAS, "torch": "2.9", "device": "cuda"})


def test_an_allowed_change_is_reported_with_both_losses():
    text = _check([2.5, 3.0], allows=True)
    assert text.startswith("loss 2.7500 on 2 stored rows, 2.5500 when it was saved: row 2 differs by 0.4 nats")
    assert text.endswith("a change is allowed")
