"""What a device is, apart from computing: identity, memory, driver, library versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from megads.cluster.machine import available_memory
from megads.device.vendor import Vendor

_DRIVERS = {
    "nvidia": ("driver/nvidia/version",),
    "amd": ("module/amdgpu/version", "module/amdgpu/srcversion"),
    "intel": ("module/xe/srcversion", "module/i915/srcversion", "module/i915/version"),
}
"""Files that hold the kernel driver's version, below /proc for nvidia and below /sys for the others."""


def identity(row: Vendor, device: torch.device) -> str:
    """Return what no other device of the host has: UUID or PCI id; "" where torch gives none, as for a CPU."""
    if row.device_type == "cpu":
        return ""
    properties = row.module.get_device_properties(device)
    if uuid := getattr(properties, "uuid", None):
        return str(uuid)
    bus = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return ":".join(f"{part:02x}" for part in bus) if all(isinstance(part, int) for part in bus) else ""


def memory(row: Vendor, device: torch.device) -> tuple[int, int]:
    """Return (free, total) bytes of the device; of the host for a CPU."""
    if row.device_type == "cpu":
        return available_memory(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        free, total = row.module.mem_get_info(device)
    except (AttributeError, RuntimeError):  # older torch.xpu, and drivers that do not report it
        total = int(row.module.get_device_properties(device).total_memory)
        free = total - int(row.module.memory_reserved(device))
    return int(free), int(total)


def driver(row: Vendor, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> str:
    """Return the version of the kernel driver, "" where there is none."""
    for name in _DRIVERS.get(row.name, ()):
        try:
            text = ((proc if row.name == "nvidia" else sys) / name).read_text()
        except OSError:
            continue
        return " ".join(text.splitlines()[0].split())
    return ""


def boot_id(proc: Path = Path("/proc")) -> str:
    """Return what tells this kernel from others, whatever names a host has; "" where the system does not say."""
    path = proc / "sys/kernel/random/boot_id"
    return path.read_text().strip() if path.exists() else ""


def libraries(row: Vendor) -> dict[str, str]:
    """Return the versions of what torch was built with and loads for this vendor."""
    version: Any = torch.version
    found = {"cuda": version.cuda, "hip": version.hip, "xpu": getattr(version, "xpu", None)}
    if row.device_type == "cuda" and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {name: str(value) for name, value in found.items() if value}
