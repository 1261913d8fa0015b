"""Which machine this is, and what it has: accelerators, cores, memory. Without torch.

``ALCF/helpers.sh`` finds the machine by the same rules; tests/shell holds one against
the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from megads.errors import ConfigError

# Ponte Vecchio (0bd*, 0b6*, 0be*) and Flex (56c*). Intel's integrated graphics sit under
# the same paths with other ids and are not meant for training.
_INTEL_DEVICES = re.compile(r"0x(0bd|0b6|0be|56c).")
_FP16_FLAGS = {"avx512_fp16", "avx_ne_convert", "asimdhp"}


def machine_name(
    hostname: str,
    env: Mapping[str, str],
    root: Path,
    *,
    dev: Path = Path("/dev"),
    sys: Path = Path("/sys"),
    top: Path = Path("/"),
) -> str:
    """Return the name of the machine whose facts are in ``<root>/envs/<name>.yaml``.

    In order: ``MACHINE``; the first row of ``envs/machines.txt`` that holds here; on a host
    with an accelerator ``pbs`` or ``slurm`` inside a job and ``generic`` outside; ``cpu``.

    Args:
        dev, sys, top: stand in for /dev, /sys and / in tests.

    Raises:
        ConfigError: when ``MACHINE`` names no machine of ``envs/``.
    """
    if name := env.get("MACHINE", ""):
        known = sorted(path.stem for path in (root / "envs").glob("*.yaml"))
        if name not in known:
            raise ConfigError(
                f"MACHINE={name} is not known; known machines: {', '.join(known) or f'none in {root}/envs'}"
            )
        return name
    if name := known_machine(hostname, env, root, top):
        return name
    if not count_accelerators(env, dev=dev, sys=sys):
        return "cpu"
    return job_scheduler(env) or "generic"


def job_scheduler(env: Mapping[str, str]) -> str:
    """Return ``pbs`` or ``slurm`` inside a job of one of them, else ""."""
    jobs = {"pbs": "PBS_JOBID", "slurm": "SLURM_JOB_ID"}
    return next((name for name, variable in jobs.items() if env.get(variable)), "")


def known_machine(hostname: str, env: Mapping[str, str], root: Path, top: Path = Path("/")) -> str:
    """Return the machine of the first row of ``envs/machines.txt`` that holds, "" when none does."""
    for conditions, name in read_machines(root / "envs" / "machines.txt"):
        if all(_holds(condition, hostname, env, top) for condition in conditions):
            return name
    return ""


def _holds(condition: str, hostname: str, env: Mapping[str, str], top: Path) -> bool:
    if condition.startswith("/"):
        return os.path.exists(top / condition[1:])
    variable, equals, pattern = condition.partition("=")
    if equals:
        return bool(env.get(variable)) and fnmatchcase(env[variable], pattern)
    return fnmatchcase(hostname, condition)


def read_machines(path: Path) -> list[tuple[tuple[str, ...], str]]:
    """Return the rows of machines.txt in order: conditions that must all hold, and a machine.

    A condition is a pattern of host names, ``VARIABLE=PATTERN``, or a path that exists;
    ``#`` starts a comment.

    Raises:
        ConfigError: when it cannot be read, or a line has fewer than two words.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; MEGADS_ROOT should be the checkout, or unset") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if len(words) == 1:
            raise ConfigError(f"{path}:{number}: expected 'CONDITION [CONDITION ...] MACHINE', got {line!r}")
        if words:
            rows.append((tuple(words[:-1]), words[-1]))
    return rows


def count_accelerators(env: Mapping[str, str], dev: Path = Path("/dev"), sys: Path = Path("/sys")) -> int:
    """Return how many accelerators a process started here would see; 0 with ``MEGADS_DEVICE=cpu``.

    Counts device files and the kernel's tables, so that a login node without torch or a
    driver library can tell, and honours the vendors' visibility variables. The first
    vendor with devices counts; hosts do not mix them.
    """
    if env.get("MEGADS_DEVICE") == "cpu":
        return 0
    return next(iter(visible_accelerators(env, dev, sys).values()), 0)


def visible_accelerators(env: Mapping[str, str], dev: Path = Path("/dev"), sys: Path = Path("/sys")) -> dict[str, int]:
    """Return how many devices of each vendor a process started here would see; vendors without any are skipped."""
    nvidia = len(list(dev.glob("nvidia[0-9]*")))
    amd = _count_amd(sys) if (dev / "kfd").exists() else 0
    intel = _count_intel(sys, tiles=env.get("ZE_FLAT_DEVICE_HIERARCHY") != "COMPOSITE")
    counts = {
        "nvidia": _visible(nvidia, env, "CUDA_VISIBLE_DEVICES"),
        "amd": _visible(amd, env, "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        "intel": _visible(intel, env, "ZE_AFFINITY_MASK") if env.get("ZE_AFFINITY_MASK") else intel,
    }
    return {vendor: count for vendor, count in counts.items() if count}


def _visible(count: int, env: Mapping[str, str], *masks: str) -> int:
    """Return how many of ``count`` devices the masks leave; an empty mask leaves none, as the drivers do."""
    for mask in masks:
        if mask in env:
            names = [name.strip() for name in env[mask].split(",") if name.strip()]
            shown = names[: names.index("-1")] if "-1" in names else names
            count = min(count, len(shown))
    return count


def _count_amd(sys: Path) -> int:
    """Return the nodes of the kernel's HSA topology that have compute units; the others are CPUs."""
    nodes = sys.glob("class/kfd/kfd/topology/nodes/*/properties")
    return sum(bool(re.search(r"^simd_count [1-9]", _read(node), re.MULTILINE)) for node in nodes)


def _count_intel(sys: Path, *, tiles: bool) -> int:
    """Return Intel's data-centre GPUs, or their tiles, which are devices of their own unless COMPOSITE is asked for."""
    cards = [
        card
        for card in sys.glob("class/drm/card*")
        if re.fullmatch(r"card\d+", card.name)
        and _read(card / "device/vendor").strip() == "0x8086"
        and _INTEL_DEVICES.fullmatch(_read(card / "device/device").strip())
    ]
    if not tiles:
        return len(cards)
    # i915 shows gt/gt<n>, xe shows device/tile<n>.
    return sum(max(1, len(list(card.glob("gt/gt*"))), len(list(card.glob("device/tile*")))) for card in cards)


def count_cores(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """Return the cores this process may use: its affinity mask, or less where a cgroup's quota is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _cgroups(proc, sys, "cpu"):
        quota, period = [*_read(group / "cpu.max").split(), "max", ""][:2]
        if quota == "max":
            quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def cpu_computes_fp16(proc: Path = Path("/proc")) -> bool:
    """Return whether this CPU has fp16 arithmetic, by the flags of the kernel; True where they are not known.

    oneDNN, through which torch computes on a CPU, asks for AVX512-FP16, AVX-NE-CONVERT or the
    half-precision extension of ARMv8.2.
    """
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(proc / "cpuinfo"), re.MULTILINE)
    return not match or not _FP16_FLAGS.isdisjoint(match[1].split())


def available_memory(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """Return the bytes a new program may use on this host.

    The smaller of the kernel's MemAvailable and what the limits of this process's control
    groups (v2 or v1, containers and batch jobs) leave. Page cache that the kernel would
    give back counts as free.
    """
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    found = [int(match[1]) * 1024] if match else []
    for group in _cgroups(proc, sys, "memory"):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            top, used = _read(group / limit).strip(), _read(group / usage).strip()
            if top.isdigit() and used.isdigit():
                freed = re.search(rf"^{cache} (\d+)", _read(group / "memory.stat"), re.MULTILINE)
                found.append(max(0, int(top) - int(used) + (int(freed[1]) if freed else 0)))
    return min(found, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _cgroups(proc: Path, sys: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control group and its parents, whose limits hold as well."""
    folders = []
    for line in _read(proc / "self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top = sys / "fs/cgroup"
        elif controller in controllers.split(","):
            top = sys / "fs/cgroup" / controller
        else:
            continue
        # Inside a container the path is the host's, and only the top exists.
        parts = [part for part in path.split("/") if part]
        folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
