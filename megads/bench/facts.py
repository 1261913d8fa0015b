"""Where a benchmark ran: device, driver, versions, date, commit."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from megads import __version__
from megads.bench.session import Bench
from megads.device.facts import driver, libraries, memory
from megads.release.commit import own_commit
from megads.text.plural import plural
from megads.text.units import size

PACKAGES = ("torch", "deepspeed", "transformers", "triton", "flash-attn")


def describe(bench: Bench, machine: str) -> dict[str, Any]:
    """Return what identifies the run; of this rank's device, which those of other ranks should equal."""
    row, device = bench.vendor, bench.device
    hosts = dict.fromkeys(bench.hosts)
    peak = bench.peaks("bf16")
    return {
        "device": cpu_name() if bench.is_cpu else row.device_name(device),
        "vendor": row.name,
        "ranks": f"{plural(bench.world_size, 'rank')} on {plural(len(hosts), 'host')}",
        "machine": machine,
        "memory": size(memory(row, device)[1]),
        "peak": f"{peak:g} TFLOP/s in bf16" if peak else "not known",
        "driver": driver(row) or "-",
        "backend": row.backend,
        **versions(),
        "libraries": ", ".join(f"{name} {version}" for name, version in libraries(row).items()) or "-",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "threads": torch.get_num_threads(),
        "megads": f"{__version__}, commit {own_commit()}",
        "form": "tiny" if bench.is_tiny else "full",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name(proc: Path = Path("/proc")) -> str:
    """Return the model of this host's CPU."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return f"CPU {names[0]}" if names else f"CPU {platform.machine()}"
