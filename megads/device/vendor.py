"""Accelerator vendors: how to find each one and what torch calls its parts.

The only place, with ``peaks``, that knows vendors apart, and the only one below the
command line that reads ``os.environ``.

``MEGADS_DEVICE`` names the vendor instead of taking the first one present;
``MEGADS_BACKEND`` names the communication backend instead of the vendor's best.
"""

from __future__ import annotations

import importlib
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from megads.cluster.machine import visible_accelerators
from megads.device.names import BACKENDS, Backends, allocator_of, masks_of, wanted_backend, wanted_device
from megads.device.timeline import DeviceTimeline, HostTimeline, Timeline
from megads.errors import DependencyError, DeviceError
from megads.text.plural import plural

# Backends that exist in torch only once this package has been imported.
_REGISTERED_BY = {"ccl": "oneccl_bindings_for_pytorch"}


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device, of this process."""

    allocated: int  # in tensors
    peak: int  # the most that was allocated
    reserved: int  # by torch's allocator, tensors included


def resident_bytes() -> int:
    """Return the host memory that this process has now."""
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True)
class Vendor:
    """One row per vendor: how to find it and what torch calls its parts."""

    name: str
    device_type: str  # what torch.device() takes
    backends: tuple[str, ...]  # torch.distributed names, best first
    present: Callable[[], bool]
    accepts: tuple[str, ...] = ()  # further backends that work when MEGADS_BACKEND asks

    @property
    def module(self) -> ModuleType:
        """Return ``torch.cuda``, ``torch.xpu`` or ``torch.cpu``."""
        return torch.get_device_module(self.device_type)

    @property
    def backend(self) -> str:
        """Return the first of ``backends`` that this build of torch has.

        Raises:
            DependencyError: it has none of them.
        """
        for name in self.backends:
            if _is_available(name):
                return name
        missing = " or ".join(self.backends)
        packages = [_REGISTERED_BY[name] for name in self.backends if name in _REGISTERED_BY]
        hint = f"install {packages[0]} or " if packages else ""
        raise DependencyError(
            f"device {self.name}: torch {torch.__version__} has no communication backend {missing}; "
            f"{hint}use a torch built with it, or set MEGADS_BACKEND or MEGADS_DEVICE"
        )

    def count(self) -> int:
        """Return the number of devices this process can see; a CPU counts as one."""
        return 1 if self.device_type == "cpu" else self.module.device_count()

    def device(self, local_rank: int) -> torch.device:
        """Claim the device for ``local_rank`` and return it.

        Raises:
            DeviceError: the host has fewer devices than ranks.
        """
        if self.device_type == "cpu":
            return torch.device("cpu")
        # Launchers that mask devices per process (PALS, srun --gpus-per-task) leave each
        # process one visible device, numbered 0 whatever the local rank.
        count = self.count()
        index = local_rank if count > 1 else 0
        if index >= count:
            seen = f"this process sees {plural(count, f'{self.name} device')}"
            masks = masks_of(self.name, os.environ)
            raise DeviceError(
                f"local rank {local_rank} has no device: {seen}{f' ({masks})' if masks else ''}; start at most "
                f"{plural(count, 'rank')} per host (NGPU_PER_HOST), or show every rank one device or all of them"
            )
        self.module.set_device(index)
        return torch.device(self.device_type, index)

    def device_name(self, device: torch.device) -> str:
        """Return the product name, e.g. ``"NVIDIA A100-SXM4-40GB"``; ``"cpu"`` for a CPU."""
        return "cpu" if self.device_type == "cpu" else str(self.module.get_device_name(device))

    def allocator(self) -> str:
        """Return what torch's caching allocator of the device is told by this process's environment; "" for a CPU."""
        return "" if self.device_type == "cpu" else allocator_of(os.environ)

    def units(self, device: torch.device) -> int:
        """Return the streaming multiprocessors, compute units or vector engines of the device; 0 for a CPU."""
        if self.device_type == "cpu":
            return 0
        found = self.module.get_device_properties(device)
        return int(getattr(found, "gpu_eu_count" if self.device_type == "xpu" else "multi_processor_count", 0))

    def product_dtype(self, dtype: str) -> str:
        """Return in what products of ``dtype`` are computed: ``tf32`` where torch was told to use it for fp32.

        It is not, unless ``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`` or a program says so.
        """
        return "tf32" if dtype == "fp32" and self.device_type == "cuda" and _rounds_to_tf32() else dtype

    def memory_bytes(self, device: torch.device) -> int:
        """Return the most memory this process has used so far: device tensors, on a CPU the resident set."""
        if self.device_type == "cpu":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(self.module.max_memory_allocated(device))

    def timeline(self, device: torch.device) -> Timeline:
        """Return what takes times of the calling thread's queue on the device, or on a CPU the host's clock."""
        if self.device_type == "cpu":
            return HostTimeline()
        return DeviceTimeline(lambda: self.module.Event(enable_timing=True), self.module.current_stream(device))

    def memory_now(self, device: torch.device) -> DeviceMemory | None:
        """Return what the device's allocator has now; None on a CPU, which has none."""
        if self.device_type == "cpu":
            return None
        module = self.module
        return DeviceMemory(
            int(module.memory_allocated(device)),
            int(module.max_memory_allocated(device)),
            int(module.memory_reserved(device)),
        )

    def forget_peak(self, device: torch.device) -> None:
        """Have the peak of :meth:`memory_now` and :meth:`memory_bytes` begin again; on a CPU nothing does."""
        if self.device_type != "cpu":
            self.module.reset_peak_memory_stats(device)

    def activities(self) -> list[Any]:
        """Return what torch's profiler can see of this vendor's devices, and of the host."""
        from torch.profiler import ProfilerActivity

        kinds = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}
        return [ProfilerActivity.CPU, *kinds.get(self.device_type, [])]

    def synchronize(self, device: torch.device) -> None:
        """Wait until the device has done what was asked of it; nothing to wait for on a CPU."""
        if self.device_type != "cpu":
            self.module.synchronize(device)


def _rounds_to_tf32() -> bool:
    matmul = torch.backends.cuda.matmul
    said = getattr(matmul, "fp32_precision", "")  # since torch 2.9; once it was set the older name raises an error
    return said == "tf32" if said in ("tf32", "ieee") else bool(matmul.allow_tf32)


def _row(name: str, device_type: str, present: Callable[[], bool]) -> Vendor:
    return Vendor(name, device_type, BACKENDS[name].own, present, BACKENDS[name].accepts)


VENDORS: tuple[Vendor, ...] = (
    _row("nvidia", "cuda", lambda: torch.cuda.is_available() and torch.version.hip is None),
    # torch calls AMD's devices "cuda".
    _row("amd", "cuda", lambda: torch.cuda.is_available() and torch.version.hip is not None),
    _row("intel", "xpu", lambda: torch.xpu.is_available()),
    _row("cpu", "cpu", lambda: True),
)


def register(row: Vendor) -> None:
    """Add a device that is looked for before all others, in this process; a row of the same name gives way."""
    global VENDORS
    VENDORS = (row, *(each for each in VENDORS if each.name != row.name))
    BACKENDS[row.name] = Backends(row.backends, row.accepts)


def vendor(env: Mapping[str, str] | None = None) -> Vendor:
    """Return the vendor named by ``MEGADS_DEVICE``, else the first one present.

    With ``MEGADS_BACKEND`` the row that comes back knows only that backend.

    Raises:
        ConfigError: a name that is not known, or a backend that cannot serve the device.
        DeviceError: the device asked for is not here, or the host has one that torch does not find.
        DependencyError: this build of torch lacks the backend asked for.
    """
    env = os.environ if env is None else env
    row = _find_vendor(wanted_device(env), env)
    backend = wanted_backend(env, row.name)
    return _with_backend(row, backend) if backend else row


def _find_vendor(wanted: str, env: Mapping[str, str]) -> Vendor:
    present = [row for row in VENDORS if row.present()]
    if not wanted:
        seen = visible_accelerators(env) if present[0].name == "cpu" else {}
        for name, count in seen.items():
            # Training on the CPU of such a host would go unnoticed.
            masks = masks_of(name, env)
            raise DeviceError(
                f"this host shows {plural(count, f'{name} device')}{f' ({masks})' if masks else ''}, and torch "
                f"{torch.__version__} finds none: install a torch built for {name}, check the driver and what hides "
                "devices, or set MEGADS_DEVICE=cpu to train on the CPU"
            )
        return present[0]
    named = [row for row in present if row.name == wanted]
    if not named:
        raise DeviceError(
            f"MEGADS_DEVICE={wanted}: torch {torch.__version__} finds no such device on this host; "
            f"it finds {', '.join(row.name for row in present)}"
        )
    return named[0]


def _with_backend(row: Vendor, wanted: str) -> Vendor:
    if not _is_available(wanted):
        available = [name for name in (*row.backends, *row.accepts) if _is_available(name)]
        instead = f"; this build has {' and '.join(available)}" if available else ""
        package = _REGISTERED_BY.get(wanted)
        hint = f" and {package} is not installed" if package else ""
        raise DependencyError(f"MEGADS_BACKEND={wanted}: torch {torch.__version__} was built without it{hint}{instead}")
    return replace(row, backends=(wanted,))


def _is_available(backend: str) -> bool:
    package = _REGISTERED_BY.get(backend)
    if package and not dist.is_backend_available(backend):
        try:
            importlib.import_module(package)
        except ImportError:
            return False
    return dist.is_backend_available(backend)
