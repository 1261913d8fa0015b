"""Tolerances follow the type of the products; measured differences of layouts and types are below them."""

from __future__ import annotations

import math

import pytest

from megads.checkpoint.function.tolerance import LEAST, ROUNDOFF, tolerance


def test_the_coarser_type_counts_and_deeper_models_and_larger_losses_get_more():
    assert tolerance(("fp32", "bf16"), 2, 3.0) == tolerance(("bf16", "bf16"), 2, 3.0)
    assert tolerance(("fp32", "fp32"), 2, 0.1) == LEAST
    assert tolerance(("bf16",), 32, 2.0) > tolerance(("bf16",), 2, 2.0)
    assert tolerance(("bf16",), 2, 8.0) == pytest.approx(4 * tolerance(("bf16",), 2, 2.0))
    assert list(ROUNDOFF.values()) == sorted(ROUNDOFF.values())


def test_a_changed_rotation_of_a_trained_model_is_far_outside():
    """The published accident: 2.57 became 6.03, in bf16, 32 layers or fewer."""
    assert tolerance(("bf16", "bf16"), 32, 2.57) < (6.03 - 2.57) / 20
    assert math.isfinite(tolerance(("unheard of",), 2, 2.0))
