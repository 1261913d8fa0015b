"""What training systems do differently, as rows: their kernels, what they hide, how they cut a sequence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """A training system.

    Attributes:
        name: as rows of measurements call it.
        sequence: how the sequence axis works: ``ulysses`` exchanges heads, ``ring`` passes keys and values on.
    """

    name: str
    sequence: str = "ulysses"


MEGADS = System("megads")

SYSTEMS = {
    each.name: each
    for each in (
        MEGADS,
        System("megatron-core", sequence="ring"),
        System("megatron-2021", sequence="ring"),
        System("megatron-deepspeed"),
        System("torchtitan", sequence="ring"),
        System("fsdp", sequence="ring"),
    )
}
"""By name."""
