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

MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
    "cpu": (),
}
"""By vendor, the variables that hide devices from a process."""

ALLOCATOR = {"nvidia": "expandable_segments:True"}
"""By vendor, what torch's caching allocator is told when nobody said anything else.

Expandable segments keep what is free in one piece, where sizes change from step to step. Not on AMD: torch has them
from 2.12 on, with ROCm 7, and a copy to a device was seen to hang (pytorch issue 192259). Not on Intel: they are new
in torch 2.10, and nobody has shown them together with oneCCL.
"""

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Where torch looks; the first name is known since torch 2.9, which calls the others deprecated."""


def masks_of(device: str, env: Mapping[str, str]) -> str:
    """Return the variables that hide devices of a vendor, with their values; empty where none is set."""
    return " ".join(f"{name}={env[name]}" for name in MASKS.get(device, ()) if name in env)


def allocator_of(env: Mapping[str, str]) -> str:
    """Return what torch's allocator is told by ``env``, ``""`` when nothing."""
    return next((env[name] for name in ALLOCATOR_VARIABLES if env.get(name)), "")


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
