"""Rows of accelerators that a roofline knows."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from megads.plan.accelerators import ACCELERATORS, accelerator
from megads.plan.peaks import peak_tflops


@pytest.mark.parametrize("row", ACCELERATORS.values(), ids=ACCELERATORS)
def test_every_row_has_a_peak_and_plausible_bandwidths(row):
    assert peak_tflops(row.device_name, "bf16", {}, row.units)
    assert row.memory_gb_s > row.link_gb_s > row.network_gb_s * (row.device_name[:5] != "Intel")
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


@pytest.mark.parametrize(("name", "end"), [("", "pvc"), ("v100", "pvc; v100 is none")])
def test_an_unknown_name_lists_the_known_ones(name, end):
    with pytest.raises(ConfigError) as told:
        accelerator(name)
    assert (
        str(told.value)
        == f"--roofline needs --device, one of a100, a100-40, a100-dgx, h100, h200, mi250x, mi300x, {end}"
    )
