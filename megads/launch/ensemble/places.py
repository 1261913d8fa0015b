"""Which hosts, and which devices of a host, are free for the next run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megads.cluster.machine import count_accelerators, visible_accelerators
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig
from megads.errors import LaunchError
from megads.launch.ensemble.members import Member
from megads.launch.nodes.memory import NodeRecord, short
from megads.launch.schedulers.allocation import find_hosts, is_here, ranks_per_host
from megads.text.plural import plural

MASKS = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}


@dataclass(frozen=True)
class Place:
    """Where a run runs: whole hosts, or slots of one."""

    hosts: tuple[str, ...]
    slots: tuple[int, ...] = ()  # of its only host; empty: all


@dataclass
class Places:
    """The hosts of an allocation; each takes ``slots`` ranks of runs that share it."""

    hosts: Sequence[str]
    slots: int
    mask: str = ""  # the variable that says which devices a process sees; empty: hosts have none
    devices: Sequence[str] = ()  # their names, of slot 0, 1, ...
    one_host: bool = True  # this one, without a scheduler or a list of hosts
    free: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = {host: list(range(self.slots)) for host in self.hosts}

    def take(self, member: Member) -> Place | None:
        """Return a free place for a run, None while there is none."""
        if member.ranks:
            # The fullest host that has room: whole hosts stay free for those that need them.
            fitting = [host for host in self.free if len(self.free[host]) >= member.ranks]
            if not fitting:
                return None
            host = min(fitting, key=lambda each: len(self.free[each]))
            slots, self.free[host] = self.free[host][: member.ranks], self.free[host][member.ranks :]
            return Place((host,), tuple(slots))
        whole = [host for host in self.free if len(self.free[host]) == self.slots][: member.hosts]
        if len(whole) < member.hosts:
            return None
        for host in whole:
            self.free[host] = []
        return Place(tuple(whole))

    def give_back(self, place: Place) -> None:
        """Free a place again; hosts that were excluded meanwhile stay so."""
        for host in place.hosts:
            if host in self.free:
                self.free[host] = sorted({*self.free[host], *(place.slots or range(self.slots))})

    def exclude(self, host: str) -> bool:
        """Use ``host`` no longer; return whether it was used until now."""
        name = next((each for each in self.free if each.split(".")[0] == host.split(".")[0]), "")
        return self.free.pop(name, None) is not None

    def leave_out(self, bad: Mapping[str, NodeRecord], members: Sequence[Member]) -> list[str]:
        """Leave hosts unused that are known for failures while every run still finds a place; return lines about it.

        Args:
            bad: hosts by their short names, the worst first. One that the runs need is used last.
        """
        needed = max(1 if member.ranks else member.hosts for member in members)
        lines = []
        for name, record in bad.items():
            host = next((each for each in self.free if short(each) == name), "")
            if not host:
                continue
            slots = self.free.pop(host)
            if len(self.free) >= needed:
                what = "is left unused"
            else:
                self.free[host], what = slots, "is used, as the runs need it"
            lines.append(f"host {host} {what}: {record.why}; megads nodes --forget {name} once it is repaired")
        return lines

    def refuse(self, members: Sequence[Member]) -> None:
        """Refuse a run that fits nowhere, before any is started.

        Raises:
            LaunchError: with what would fit.
        """
        for member in members:
            if problem := self.problem(member):
                raise LaunchError(f"{member.name}: {problem}")

    def problem(self, member: Member) -> str:
        """Return why a run would never get a place, or nothing."""
        if member.ranks > self.slots:
            return f"ranks: {member.ranks}, and a host takes {self.slots}; use fewer, or hosts: N for whole hosts"
        if not member.ranks and member.hosts > len(self.free):
            return (
                f"hosts: {member.hosts}, and {plural(len(self.free), 'host')} can be used; use at most {len(self.free)}"
            )
        return "" if self.free else "no host is left"

    def variables(self, place: Place, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that give a run its place, besides the list of its hosts."""
        if not place.slots:
            return {} if self.one_host else {"NHOSTS": str(len(place.hosts))}
        found = {"NHOSTS": "1", "NGPU_PER_HOST": str(len(place.slots))}
        if self.mask:
            found[self.mask] = ",".join(self.devices[slot] for slot in place.slots)
        return found


def find_places(launch: LaunchConfig, env: Mapping[str, str], facts: Facts) -> Places:
    """Return the hosts of this job, or this host, with the ranks that each of them takes.

    A host without accelerators takes as many ranks as this one has cores.

    Raises:
        LaunchError: the hosts are not known.
    """
    scheduler, _, hosts, _ = find_hosts(launch, env)
    here = any(is_here(host, env) for host in hosts)
    count = ranks_per_host(launch, facts, count_accelerators(env), here=here)
    on_cpu = env.get("MEGADS_DEVICE") == "cpu" or facts.device in ("", "cpu")
    vendor = "" if on_cpu and not count_accelerators(env) else next(iter(visible_accelerators(env)), facts.device)
    mask = MASKS.get(vendor, "")
    slots = count or len(os.sched_getaffinity(0))
    given = [name.strip() for name in env.get(mask, "").split(",") if name.strip()] if mask else []
    devices = given[:slots] if len(given) >= slots else [str(number) for number in range(slots)]
    alone = scheduler.name == "none" and not launch.hostfile
    return Places(hosts, slots, mask, devices, alone)
