"""Devices and communication backends by name, and what the environment asks for; without torch.

``megads.device.vendor`` turns a name into a torch device. The launcher reads names here, so
that a wrong one is reported before a rank is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megads.errors import ConfigError


@dataclass(frozen=True)
class Backends:
    """The torch.distributed backends of one vendor."""

    own: tuple[str, ...]  # best first
    accepts: tuple[str, ...] = ()  # further ones that work when MEGADS_BACKEND asks

    @property
    def fitting(self) -> tuple[str, ...]:
        """Every backend that can serve the vendor's devices."""
        return (*self.own, *self.accepts)


BACKENDS = {
    "nvidia": Backends(("nccl",), ("gloo",)),
    # torch calls AMD's RCCL "nccl".
    "amd": Backends(("nccl",), ("gloo",)),
    # xccl is part of torch from 2.8 on; before that the ccl bindings were a package of their own.
    "intel": Backends(("xccl", "ccl")),
    "cpu": Backends(("gloo",), ("mpi", "ccl")),
}
"""By vendor, in the order in which they are looked for."""


def wanted_device(env: Mapping[str, str]) -> str:
    """Return the vendor that ``MEGADS_DEVICE`` names, ``""`` when it names none.

    Raises:
        ConfigError: the name is not known.
    """
    wanted = env.get("MEGADS_DEVICE", "")
    if wanted and wanted not in BACKENDS:
        raise ConfigError(f"MEGADS_DEVICE={wanted}: not one of {', '.join(BACKENDS)}")
    return wanted


def wanted_backend(env: Mapping[str, str], device: str) -> str:
    """Return the backend that ``MEGADS_BACKEND`` names, ``""`` when it names none.

    Raises:
        ConfigError: the name is not known, or cannot serve ``device``.
    """
    wanted = env.get("MEGADS_BACKEND", "")
    known = sorted({name for row in BACKENDS.values() for name in row.fitting})
    if wanted and wanted not in known:
        raise ConfigError(f"MEGADS_BACKEND={wanted}: not one of {', '.join(known)}")
    fitting = BACKENDS[device].fitting
    if wanted and wanted not in fitting:
        raise ConfigError(f"MEGADS_BACKEND={wanted}: does not serve device {device}; use {' or '.join(fitting)}")
    return wanted
