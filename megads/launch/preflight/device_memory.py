"""Whether a run fits the memory of its devices, also on a machine whose hosts differ. Without torch."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from megads.cluster.machine import available_memory
from megads.config.machine_facts import Facts
from megads.config.rules.advice import Attempt
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved
from megads.errors import ConfigError
from megads.launch.schedulers.allocation import Allocation, is_here
from megads.plan.in_parts import plan_line, plan_long_context, with_plan
from megads.plan.memory import GIB, check_device, host_bytes, host_problem

LOOK_S = 20.0  # for an answer of nvidia-smi
_ALTERNATIVE = re.compile(r"[|]+")
_WORD = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one rank's device."""

    gib: float  # 0: not known
    kind: str = ""  # which of the machine's devices that is, for messages; empty where all are equal


def device_memory(facts: Facts, asked: str = "", measured_gib: float = 0.0) -> DeviceMemory:
    """Return what the devices of a run have, on a machine of several kinds the smallest that they may be.

    Args:
        asked: the job's constraint, as ``gpu&hbm80g``, or its queue; empty: not known.
        measured_gib: of a device on a host of the run, before the driver has its part; 0: not known.
    """
    smallest, larger = facts.device_memory_gib, facts.larger_devices
    if not larger:
        return DeviceMemory(smallest)
    if measured_gib:
        fitting = [gib for gib in (smallest, *larger.values()) if gib <= measured_gib]
        return DeviceMemory(max(fitting, default=measured_gib), "as on this host")
    found = [
        max((larger[word] for word in _WORD.findall(part) if word in larger), default=smallest)
        for part in _ALTERNATIVE.split(asked)
    ]
    if min(found) > smallest:
        return DeviceMemory(min(found), f"asked for by {asked}")
    others = ", ".join(f"{name} {gib:g}" for name, gib in larger.items())
    return DeviceMemory(smallest, f"its smallest; {others}")


def for_long_context(
    asked: Resolved, derived: Resolved, allocation: Allocation, facts: Facts
) -> tuple[Resolved, Resolved]:
    """Return both with what LONG_CONTEXT=1 plans for the memory of the run's devices, and a line that says it."""
    run = derived.run
    if not run.recompute.long_context:
        return asked, derived
    on_cpu = run.machine == "cpu"
    gib = available_memory() / GIB / allocation.ranks_per_host if on_cpu else device_memory(facts).gib
    changes = plan_long_context(derived, allocation.world_size, gib)
    planned = with_plan(derived, changes)
    line = plan_line(planned.run, allocation.world_size, gib)
    return with_plan(asked, changes), replace(planned, notes=(*planned.notes, line))


def check_here(run: RunConfig, allocation: Allocation, env: Mapping[str, str], facts: Facts, attempt: Attempt) -> str:
    """Check the run against the memory of its hosts and of their devices.

    See :func:`megads.plan.memory.check_device` for the devices, and :func:`check_host_memory`.
    """
    is_one_of_them = any(is_here(host, env) for host in allocation.hosts)
    if is_one_of_them:
        check_host_memory(run, allocation, available_memory())
    looks = facts.larger_devices and facts.device == "nvidia" and is_one_of_them
    memory = device_memory(facts, measured_gib=_measured_gib(env) if looks else 0.0)
    return check_device(run, allocation.world_size, run.machine, memory.gib, attempt, kind=memory.kind)


def check_host_memory(run: RunConfig, allocation: Allocation, available: int) -> None:
    """Refuse ranks of accelerators that need more than the ``available`` bytes of their host, unless FORCE is on.

    Raises:
        ConfigError: what they need, and what would need less.
    """
    needed = host_bytes(run, allocation.world_size)
    problem = host_problem(run, needed, allocation.ranks_per_host, available, "this host")
    if problem and not run.train.force:
        raise ConfigError(problem)


def constraint_of(options: Sequence[str], env: Mapping[str, str], default: str) -> str:
    """Return which hosts a job of SLURM asks for: by sbatch's variable, else its options, else the machine's."""
    words = iter(options)
    found = default
    for word in words:
        if word in ("-C", "--constraint"):
            found = next(words, found)
        elif word.startswith(("-C", "--constraint=")):
            found = word.removeprefix("--constraint=").removeprefix("-C")
    return env.get("SBATCH_CONSTRAINT") or found


def _measured_gib(env: Mapping[str, str]) -> float:
    """Return the memory of this host's smallest device; 0 where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=LOOK_S)
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired):
        return 0.0
    sizes = [int(word) for word in done.stdout.split() if word.isdecimal()]
    return min(sizes, default=0) / 1024 if not done.returncode else 0.0
