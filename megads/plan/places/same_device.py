"""Which rows of the tables are about the device that torch reports."""

from __future__ import annotations

import re

from megads.plan.places.accelerators import ACCELERATORS
from megads.plan.places.peaks import peak_row

CPU = "cpu"
"""How a device name begins that is a host's own processor."""

_SIZE = re.compile(r"(\d+) ?GB", re.IGNORECASE)


def is_cpu(device_name: str) -> bool:
    """Return whether ``device_name`` is that of a host's own processor."""
    return device_name.lower().split(" ")[0] == CPU


def are_same(one: str, other: str) -> bool:
    """Return whether two names are those of equal devices: the same peaks, and the same memory where both say it."""
    if is_cpu(one) or is_cpu(other):
        return one == other
    sizes = [match[1] for match in map(_SIZE.search, (one, other)) if match]
    row = peak_row(one)
    return row is not None and row is peak_row(other) and len(set(sizes)) < 2


def accelerator_key(device_name: str, units: int = 0) -> str:
    """Return the key in ``ACCELERATORS`` of a whole device by its name; empty where there is none.

    Args:
        units: that the device has, see ``Vendor.units``; with fewer than the row's it is a part of the device.
    """
    row = peak_row(device_name)
    by_name = sorted(ACCELERATORS.items(), key=lambda pair: pair[1].device_name.lower() != device_name.lower())
    for key, each in by_name:
        whole = each.units or (row.units if row else 0)
        if are_same(each.device_name, device_name) and (not units or not whole or units == whole):
            return key
    return ""
