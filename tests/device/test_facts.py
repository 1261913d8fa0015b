"""What a host says about its devices, from files as the drivers write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megads.device import facts
from megads.device.vendor import VENDORS

CPU = torch.device("cpu")


@dataclass
class Row:
    """A vendor whose device has the given properties."""

    properties: dict[str, Any] = field(default_factory=dict)
    name: str = "nvidia"
    device_type: str = "cuda"

    @property
    def module(self):
        return SimpleNamespace(
            get_device_properties=lambda device: SimpleNamespace(**self.properties), memory_reserved=lambda device: 100
        )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"uuid": "GPU-1", "pci_bus_id": 2}, "GPU-1"),
        ({"pci_domain_id": 0, "pci_bus_id": 193, "pci_device_id": 1}, "00:c1:01"),
        ({"pci_bus_id": 193}, ""),
    ],
)
def test_a_device_is_known_by_its_uuid_or_its_place(properties, expected):
    assert facts.identity(Row(properties), CPU) == expected


def test_memory_of_a_driver_that_counts_none_is_what_torch_has_not_reserved():
    assert facts.memory(Row({"total_memory": 1000}), CPU) == (900, 1000)


def test_memory_of_a_cpu_is_the_hosts():
    free, total = facts.memory(VENDORS[-1], CPU)
    assert 0 < free <= total


@pytest.mark.parametrize(
    ("name", "file", "text", "expected"),
    [
        ("nvidia", "driver/nvidia/version", "NVRM version:  550.54  x86\nGCC 12\n", "NVRM version: 550.54 x86"),
        ("amd", "module/amdgpu/srcversion", "AB12\n", "AB12"),
        ("intel", "module/i915/version", "1.2\n", "1.2"),
        ("cpu", "module/i915/version", "1.2\n", ""),
    ],
)
def test_the_driver_is_read_where_its_kernel_module_says(name, file, text, expected, tmp_path):
    path = tmp_path / ("proc" if name == "nvidia" else "sys") / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert facts.driver(Row(name=name), tmp_path / "proc", tmp_path / "sys") == expected


def test_a_kernel_without_a_boot_id_has_none(tmp_path):
    assert facts.boot_id(tmp_path) == ""
    assert facts.boot_id() == facts.boot_id() != ""
