"""Rows of accelerators that a roofline knows."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from megads.plan.places.accelerators import ACCELERATORS, accelerator
from megads.plan.places.peaks import peak_tflops


@pytest.mark.parametrize("row", ACCELERATORS.values(), ids=ACCELERATORS)
def test_every_row_has_a_peak_and_plausible_bandwidths(row):
    assert peak_tflops(row.device_name, "fp16", {}, row.units)
    assert 0.9 < row.usable_gib / row.memory_gib <= 1
    assert row.memory_gb_s > row.link_gb_s > row.network_gb_s * (row.pair_gb_s != 196)
    assert row.source


def test_where_neighbours_are():
    row = accelerator("PVC")
    assert [row.reaches(ranks)[0] for ranks in (2, 3, 12, 13)] == [
        "inside a card",
        "inside a host",
        "inside a host",
        "between hosts",
    ]
    assert accelerator("h100").reaches(2) == ("inside a host", 450)


def test_devices_of_several_hosts_may_be_joined():
    assert [accelerator("gb200").reaches(ranks)[0] for ranks in (4, 72, 73)] == [
        "inside a host",
        "inside a rack",
        "between hosts",
    ]


@pytest.mark.parametrize(("name", "end"), [("", "pvc-448"), ("v10", "pvc-448; v10 is none")])
def test_an_unknown_name_lists_the_known_ones(name, end):
    with pytest.raises(ConfigError) as told:
        accelerator(name)
    said = str(told.value)
    assert said.startswith("--roofline needs --device, one of v100, v100-16, ")
    assert said.endswith(f", mi355x, pvc, {end}")
