"""Where a planned run would be: its devices, what joins them, queues, power and failures. Facts, or said to be assumed.

A place is a machine of ``envs/`` (its facts under ``plan``) or a device on the hosts that are usual for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.config.machine_facts import Facts, Link, PlanFacts
from megads.config.sources.parse import did_you_mean
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.plan.places.accelerators import ACCELERATORS, CPU, Accelerator
from megads.plan.places.carbon import WORLD, grams_per_kwh
from megads.plan.places.peaks import peak_tflops
from megads.plan.places.rates import MODEL, Rates

DEVICES = {**ACCELERATORS, "cpu": CPU}
"""By the name that the user gives."""

LATENCY_S = {"inside a card": 3e-6, "inside a host": 5e-6, "inside a rack": 6e-6, "between hosts": 15e-6}
"""Of a message where the machine's file has none: the library's kernel starts and one message passes."""

PUE = 1.3
"""Where the site's is not known."""

REST_OF_HOST = 1.25
"""Power of a busy host by that of its accelerators' boards at most, where no measurement is known. HPL runs of the
TOP500 gave 1.03 (four A100), 1.14 (four MI250X) and 1.16 (six Max 1550), network included; a DGX H100 may take 1.8."""

MTBF_HOURS = 6_300.0
"""Of a host where no record is known: 419 failures in 54 days of 2,048 hosts of eight H100 (arXiv 2407.21783)."""

START_S = 120.0
"""From the start of a job to its first step where the machine's file has no time."""


@dataclass(frozen=True)
class Level:
    """What joins neighbouring ranks.

    Attributes:
        ranks: how many it joins; 0: all.
        gb_s: per rank and direction, while all of them send.
        latency_s: of a message.
        what: where they are, e.g. ``inside a host``.
    """

    ranks: int
    gb_s: float
    latency_s: float
    what: str


@dataclass(frozen=True)
class Queue:
    """A queue and its limits; ``max_hosts`` and ``hours`` 0: none known."""

    name: str
    min_hosts: int
    max_hosts: int
    hours: float


@dataclass(frozen=True)
class Place:
    """Where a run would be.

    Attributes:
        name: of the machine or device, as the user gives it.
        device: of one rank.
        per_host: ranks of a host.
        memory_gib: of one rank's device, as torch reports it.
        levels: what joins ranks, the nearest first; the last one joins all.
        hosts: that the machine has; 0: not known.
        queues: in the order in which a job tries them.
        host_watts: of a busy host.
        pue: power of the building by that of its computers.
        grams_per_kwh: CO2 of its electricity.
        storage_gb_s: that all ranks together write; 0: not known.
        host_mtbf_hours: mean time between failures of one host.
        start_s: from the start of a job to its first step.
        source: of the facts.
        assumed: what is not a fact of this place, one phrase each.
        rates: what measurements there changed.
    """

    name: str
    device: Accelerator
    per_host: int
    levels: tuple[Level, ...]
    hosts: int
    queues: tuple[Queue, ...]
    host_watts: float
    pue: float
    grams_per_kwh: float
    storage_gb_s: float
    host_mtbf_hours: float
    start_s: float
    source: str
    memory_gib: float
    assumed: tuple[str, ...] = ()
    rates: Rates = MODEL

    def level(self, ranks: int) -> Level:
        """Return what joins ``ranks`` neighbouring ranks."""
        return next((each for each in self.levels if ranks <= each.ranks), self.levels[-1])

    def peak_tflops(self, dtype: str) -> float:
        """Return the dense peak of a rank's device in TFLOP/s; ``dtype`` also ``fp8``.

        Raises:
            ConfigError: the device has no units for ``dtype``.
        """
        peak = self._peak("bf16" if dtype == "fp8" else dtype)
        if dtype == "fp8":
            peak = 2 * peak if peak and self.device.has_fp8 else None
        if peak is None:
            others = [each for each in ("bf16", "fp16", "fp32") if each != dtype and self._peak(each)]
            raise ConfigError(
                f"DTYPE={dtype}: {self.device.device_name} of {self.name} has no units for it; "
                f"use DTYPE={' or DTYPE='.join(others)}"
            )
        return peak

    def _peak(self, dtype: str) -> float | None:
        if self.device.cpu_tflops:
            return self.device.cpu_tflops
        return peak_tflops(self.device.device_name, dtype, {}, self.device.units)


def place_of(name: str, *, root: Path | None = None, device: str = "") -> Place:
    """Return the place called ``name``: a machine of ``<root>/envs``, or a device.

    Args:
        root: of the checkout, which has the machines; None: devices only.
        device: taken instead of the one that the machine's file names, e.g. of hosts with more memory.

    Raises:
        ConfigError: no such machine or device, a broken file, or a machine whose devices are not known.
    """
    machines = sorted(path.stem for path in (root / "envs").glob("*.yaml")) if root else []
    if root and name in machines:
        facts = read_machine(name, root).facts
        row = _row(device or facts.plan.accelerator, f"machine {name}")
        if device and device.lower() != facts.plan.accelerator:
            # Memory and power of the machine's file are those of its own devices.
            other = facts.plan.model_copy(update={"host_watts": 0})
            facts = facts.model_copy(update={"device_memory_gib": 0, "plan": other})
        return _of_machine(name, facts, row)
    if name.lower() not in DEVICES:
        hint = did_you_mean(name, [*machines, *DEVICES])
        kind = "machine and no device" if root else "device"
        of_machines = f"known machines: {', '.join(machines)}; " if root else ""
        raise ConfigError(f"no {kind} {name!r}; {of_machines}known devices: {', '.join(DEVICES)}{hint}")
    if device and device.lower() != name.lower():
        raise ConfigError(f"{name} is a device; pass {device} alone, or a machine with it")
    row = DEVICES[name.lower()]
    return _of_machine(name.lower(), Facts(), row)


def _row(name: str, where: str) -> Accelerator:
    if name.lower() in DEVICES:
        return DEVICES[name.lower()]
    known = ", ".join(DEVICES)
    if not name:
        raise ConfigError(f"{where}: its file does not say which device a rank has; pass --device, one of {known}")
    raise ConfigError(f"{where}: no device {name!r}; known devices: {known}{did_you_mean(name, list(DEVICES))}")


def _of_machine(name: str, facts: Facts, row: Accelerator) -> Place:
    plan = facts.plan
    per_host = facts.ranks_per_host or row.per_host
    return Place(
        name=name,
        device=row,
        per_host=per_host,
        levels=tuple(_levels(plan.links, row, per_host)),
        hosts=plan.hosts,
        queues=tuple(Queue(each.name, each.hosts.first, each.hosts.last, each.hours) for each in facts.submit.queues),
        host_watts=plan.host_watts or _watts(row, per_host),
        pue=plan.pue or PUE,
        grams_per_kwh=plan.grams_per_kwh or _grams(plan.region, name),
        storage_gb_s=plan.storage_gb_s,
        host_mtbf_hours=plan.host_mtbf_hours or MTBF_HOURS,
        start_s=plan.start_s or START_S,
        source=_source(name, facts, row),
        memory_gib=facts.device_memory_gib or row.usable_gib or row.memory_gib,
        assumed=tuple(_assumed(plan, row, per_host)),
    )


def _levels(links: tuple[Link, ...], row: Accelerator, per_host: int) -> Iterator[Level]:
    for link in links or tuple(_usual(row, per_host)):
        usual = LATENCY_S.get(link.what, LATENCY_S["between hosts"])
        yield Level(link.ranks, link.gb_s, link.latency_us * 1e-6 or usual, link.what)


def _usual(row: Accelerator, per_host: int) -> Iterator[Link]:
    """Yield the links of the hosts that are usual for a device."""
    if row.pair_gb_s:
        yield Link(what="inside a card", ranks=2, gb_s=row.pair_gb_s)
    if per_host > 1:
        yield Link(what="inside a host", ranks=per_host, gb_s=row.link_gb_s)
    if row.joined > per_host:
        yield Link(what="inside a rack", ranks=row.joined, gb_s=row.link_gb_s)
    # A host has its adapters for the ranks that it has.
    yield Link(what="between hosts", ranks=0, gb_s=row.network_gb_s * row.per_host / per_host)


def _source(name: str, facts: Facts, row: Accelerator) -> str:
    if not facts.description:
        return row.source
    # Of the row only its data sheet, where the file says how the hosts are.
    return f"envs/{name}.yaml; {row.source.split(';')[0] if facts.plan.links else row.source}"


def _grams(region: str, name: str) -> float:
    try:
        return grams_per_kwh(region) if region else WORLD
    except ConfigError as error:
        raise ConfigError(f"machine {name}: {error}") from None


def _watts(row: Accelerator, per_host: int) -> float:
    return round(REST_OF_HOST * per_host * row.watts)


def _assumed(plan: PlanFacts, row: Accelerator, per_host: int) -> Iterator[str]:
    if not plan.links:
        yield f"links and network of the usual host with {per_host} of these devices"
    if not all(link.latency_us for link in plan.links):
        yield "latencies of messages"
    if not plan.host_watts:
        yield f"{_watts(row, per_host):,} W per host"
    if not plan.pue:
        yield f"PUE {PUE:g}"
    if not plan.grams_per_kwh and not plan.region:
        yield f"{WORLD:g} g of CO2 per kWh, the world's mean"
    if not plan.host_mtbf_hours:
        yield f"{MTBF_HOURS:,.0f} h between failures of a host"
    if not plan.start_s:
        yield f"{START_S:g} s until the first step"
    if not plan.storage_gb_s:
        yield "bandwidth of storage: not known"
