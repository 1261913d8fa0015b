"""Devices by the names that torch reports."""

from __future__ import annotations

import pytest

from megads.plan.places.accelerators import ACCELERATORS
from megads.plan.places.same_device import accelerator_key, are_same, is_cpu


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", False),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", True),
        ("AMD Instinct MI250X", "AMD Instinct MI250X / MI250", True),
        ("cpu", "NVIDIA H100 80GB HBM3", False),
        ("", "NVIDIA H100 80GB HBM3", False),
        ("Some Device", "Some Device", False),
        ("cpu", "cpu", True),
    ],
)
def test_equal_devices(one, other, same):
    assert are_same(one, other) is same
    assert are_same(other, one) is same


def test_every_row_is_found_by_its_own_name_and_no_other():
    for key, row in ACCELERATORS.items():
        found = accelerator_key(row.device_name, row.units)
        assert ACCELERATORS[found].device_name == row.device_name, key
    assert accelerator_key("NVIDIA H100 80GB HBM3", 132) == "h100"
    assert accelerator_key("NVIDIA H100 80GB HBM3", 16) == ""  # a part of it
    assert accelerator_key("Some Device") == ""
    assert accelerator_key("cpu") == ""


def test_processors_of_hosts():
    assert is_cpu("cpu")
    assert is_cpu("CPU Some Model @ 2 GHz")
    assert not is_cpu("NVIDIA H100 80GB HBM3")
