"""Hosts without accelerators as a place."""

from __future__ import annotations

from dataclasses import replace

from megads.plan.rates import Rates
from megads.plan.time.host import REFERENCE_TFLOPS, HostPlace, host_place


def test_it_has_a_reference_and_stays_a_host_with_other_rates():
    place = host_place(4)
    assert [level.ranks for level in place.levels] == [4, 0]
    changed = replace(place, rates=Rates(3.0))
    assert isinstance(changed, HostPlace)
    assert changed.peak_tflops("fp32") == changed.peak_tflops("bf16") == REFERENCE_TFLOPS
