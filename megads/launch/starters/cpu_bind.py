"""Which cores a rank may use, in whatever words its starter has for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from megads.config.machine_facts import Facts
from megads.errors import LaunchError
from megads.launch.starters.core_lists import core_lists, parse_cores


@dataclass(frozen=True)
class Binding:
    """Cores of each local rank, or the user's own words for the starter.

    All empty: the starter's default.
    """

    cores: tuple[str, ...] = ()  # one list for each local rank, as "1-8" or "1-4,9"
    option: str = ""  # handed to the starter as it is
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
            rank, or an option of the starter.
        facts: of the machine.
        ranks_per_host: local ranks.

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
