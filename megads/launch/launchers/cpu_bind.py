"""Which cores a rank may use, in whatever words its launcher has for it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from megads.config.machine_facts import Facts
from megads.errors import ConfigError, LaunchError


@dataclass(frozen=True)
class Binding:
    """Cores of each local rank, or the user's own words for the launcher.

    All empty: the launcher's default.
    """

    cores: tuple[str, ...] = ()  # one list for each local rank, as "1-8" or "1-4,9"
    option: str = ""  # handed to the launcher as it is
    free: bool = False  # no rank is bound

    def masks(self) -> str:
        """Return the cores as hexadecimal masks, comma-separated."""
        return ",".join(hex(sum(1 << core for core in parse_cores(each))) for each in self.cores)

    def smallest(self) -> int:
        """Return the fewest cores that a rank has, 0 when not known."""
        return min((len(parse_cores(each)) for each in self.cores), default=0)


FREE = Binding(free=True)
_CORES = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)


def find_binding(cpu_bind: str, facts: Facts, ranks_per_host: int) -> Binding:
    """Return the binding that CPU_BIND or else the machine's cores ask for.

    Args:
        cpu_bind: "" for the machine's, "none", "list:0-7:8-15" with one list for each local
            rank, or an option of the launcher.

    Raises:
        LaunchError: fewer lists than there are ranks on a host, a list of no cores, or blanks.
    """
    if not cpu_bind:
        if not facts.cores:
            return Binding()
        return Binding(core_lists(facts, ranks_per_host))
    if cpu_bind == "none":
        return FREE
    if not cpu_bind.strip():
        raise LaunchError(f"CPU_BIND={cpu_bind!r}: expected core lists such as list:0-7:8-15, or none")
    words = cpu_bind.removeprefix("verbose,")
    if not words.startswith("list:"):
        return Binding(option=cpu_bind)
    lists = tuple(words.removeprefix("list:").split(":"))
    if not all(_CORES.fullmatch(each) and _ascends(each) for each in lists):
        raise LaunchError(f"CPU_BIND={cpu_bind}: expected core lists such as list:0-7:8-15")
    if len(lists) < ranks_per_host:
        raise LaunchError(
            f"CPU_BIND={cpu_bind}: has {len(lists)} core lists for {ranks_per_host} ranks "
            "per host; list one per rank, or CPU_BIND=none"
        )
    return Binding(lists[:ranks_per_host])


def _ascends(cores: str) -> bool:
    ends = [part.split("-") for part in cores.split(",")]
    return all(int(end[0]) <= int(end[-1]) for end in ends)


def cpus_per_host(env: Mapping[str, str]) -> int:
    """Return the CPUs that SLURM gave this job on the host with the fewest, 0 when it does not say."""
    listed = re.findall(r"(\d+)(?:\(x\d+\))?", env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if listed:
        return min(int(count) for count in listed)
    alone = env.get("SLURM_CPUS_ON_NODE", "")
    return int(alone) if alone.isdecimal() else 0


T = TypeVar("T")


def core_lists(facts: Facts, ranks_per_host: int) -> tuple[str, ...]:
    """Return the cores of each local rank, as ``("1-8", "9-16", ...)``; empty when the machine names no cores.

    ``facts.cores`` are parts of a host (sockets, NUMA regions) in the order of local ranks:
    a machine whose first device is nearest to its last part lists that part first. Ranks are
    spread evenly over the parts and never cross from one to the next, and reserved cores are
    skipped. With fewer ranks than parts each rank gets several whole parts; with more ranks
    than cores the ranks of a part share its cores.

    Raises:
        ConfigError: the machine's lists are not of the form ``0-51`` or ``0,52``.
    """
    parts = usable_parts(facts)
    if not parts:
        return ()
    if ranks_per_host < len(parts):
        groups = _split(parts, ranks_per_host)
        return tuple(show_cores([core for part in group for core in part]) for group in groups)
    lists = []
    for part, ranks in zip(parts, _split(list(range(ranks_per_host)), len(parts)), strict=True):
        each = len(part) // len(ranks)
        for number in range(len(ranks)):
            mine = part[number * each : (number + 1) * each] if each else [part[number % len(part)]]
            lists.append(show_cores(mine))
    return tuple(lists)


def usable_parts(facts: Facts) -> list[list[int]]:
    """Return the cores that ranks may use, of each part of a host that has any."""
    reserved = set(parse_cores(facts.reserved_cores))
    parts = ([core for core in parse_cores(text) if core not in reserved] for text in facts.cores)
    return [part for part in parts if part]


def _split(items: list[T], count: int) -> list[list[T]]:
    """Return ``items`` in ``count`` runs of equal length; the first ones have one more when they do not divide."""
    each, more = divmod(len(items), count)
    ends = [number * each + min(number, more) for number in range(count + 1)]
    return [items[first:last] for first, last in itertools.pairwise(ends)]


def parse_cores(text: str) -> list[int]:
    """Return ``"0-3,8"`` as [0, 1, 2, 3, 8].

    Raises:
        ConfigError: it has another form.
    """
    cores: list[int] = []
    for word in filter(None, text.split(",")):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) < int(first):
            raise ConfigError(f"cores {text!r}: {word!r} is not a number or a range such as 0-51")
        cores += range(int(first), int(last or first) + 1)
    return cores


def show_cores(cores: list[int]) -> str:
    """Return [0, 1, 2, 3, 8] as ``"0-3,8"``; the order is that of the numbers."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)
