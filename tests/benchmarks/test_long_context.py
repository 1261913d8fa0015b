"""The benchmark of long rows runs every form."""

from __future__ import annotations

from benchmarks.long_context import QUICK, measure


def test_every_form_is_measured():
    results = measure(QUICK)
    expected = ["loss, all logits", "loss, chunks of 16", "MLP, all tokens", "MLP, 4 tiles"]
    assert [each.form for each in results] == expected
    assert all(each.seconds > 0 and each.peak_mib >= 0 for each in results)
