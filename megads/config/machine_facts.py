"""What a machine is, apart from settings: the ``facts`` of ``envs/<machine>.yaml``.

No module knows a machine's name; everything that differs between machines is a field here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from megads.config.setting import Section
from megads.errors import ConfigError
from megads.text.plural import plural

SchedulerName = Literal["none", "pbs", "slurm", "flux", "lsf"]
StarterName = Literal["direct", "local", "torchrun", "openmpi", "mpich", "pals", "srun", "flux", "jsrun", "deepspeed"]

RuntimeName = Literal["apptainer", "singularity", "pyxis", "podman-hpc", "podman", "docker", "shifter", "charliecloud"]

Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)]
"""A list of words; one string is split at blanks."""


@dataclass(frozen=True)
class Hosts:
    """A range of numbers of hosts; ``last`` 0 has no end."""

    first: int
    last: int

    def __contains__(self, count: int) -> bool:
        return self.first <= count and (count <= self.last or not self.last)

    def __str__(self) -> str:
        if self.first == self.last:
            return plural(self.first, "host")
        if self.last:
            return f"{self.first}-{self.last} hosts"
        return f"{self.first} hosts or more" if self.first > 1 else "any number of hosts"


def parse_hosts_range(value: Any) -> Hosts:
    """Return ``"1-15"``, ``"256-"`` or ``"7"`` as a range.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, Hosts):
        return value
    match = re.fullmatch(r"([1-9]\d*)(-([1-9]\d*)?)?", str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a number of hosts such as 1-15, 256- or 7")
    first = int(match[1])
    last = first if match[2] is None else int(match[3] or 0)
    if last and last < first:
        raise ValueError(f"{value!r} ends before it begins")
    return Hosts(first, last)


class Queue(Section):
    """A queue, and the jobs that it takes."""

    name: str
    hosts: Annotated[Hosts, BeforeValidator(parse_hosts_range)] = Hosts(1, 0)
    hours: float = Field(0, description="longest walltime; 0: not known", ge=0)
    jobs: int = Field(0, description="jobs of one user that it holds, queued ones included; 0: no limit known", ge=0)

    def __str__(self) -> str:
        hours = f", {self.hours:g} h" if self.hours else ""
        jobs = f", {plural(self.jobs, 'job')} per user" if self.jobs else ""
        return f"{self.name} ({self.hosts}{hours}{jobs})"


class SubmitFacts(Section):
    """What a job script of this machine says besides nodes, time and account."""

    queue_option: str = Field("", description="option that names a queue; empty: -q (PBS), --partition (SLURM)")
    queues: tuple[Queue, ...] = Field((), description="the first that takes a job is used when the user names none")
    needs_account: bool = Field(False, description="the scheduler rejects jobs without an account")
    filesystems: str = Field("", description="PBS: file systems the job needs, e.g. home:scratch")
    chunk: str = Field(
        "", description="PBS: resources of each host of select, e.g. system=big; {ranks} is ranks per host"
    )
    gpus: str = Field("", description="added to the chunk (PBS) or an option (SLURM), except on device cpu; {ranks}")
    constraint: str = Field("", description="SLURM: -C")
    directives: Words = Field((), description="further options of qsub or sbatch, one word each")
    signal_lead_s: int = Field(0, description="SLURM: seconds before the end at which it sends USR1; 0: never", ge=0)


class ContainerFacts(Section):
    """How this machine starts containers; holds for this runtime only."""

    runtime: RuntimeName | Literal[""] = Field("", description="of images that it starts; empty: the first on PATH")
    args: Words = Field((), description="options that this machine needs")
    binds: Words = Field((), description="what ranks need of the host: MPI, PMI, fabric; HOST[:INSIDE[:ro]]")
    environment: dict[str, str] = Field({}, description="variables of ranks in a container")


class Link(Section):
    """What joins neighbouring ranks: the dies of a card, the devices of a host, the hosts of a group of switches."""

    what: str = Field(description="e.g. inside a card")
    ranks: int = Field(description="neighbouring ranks that it joins; 0: all", ge=0)
    gb_s: float = Field(description="GB/s of one rank in one direction while all of them send", gt=0)
    latency_us: float = Field(0, description="of a message; 0: not known, the usual one is taken", ge=0)


class PlanFacts(Section):
    """What a plan of a run needs besides: speeds, sizes, costs. 0 or empty: not known; the plan says what it took."""

    accelerator: str = Field("", description="row of megads.plan.places.accelerators that a rank has")
    hosts: int = Field(0, description="hosts of the machine that a job may get", ge=0)
    links: tuple[Link, ...] = Field((), description="the nearest first, the last joins all ranks; empty: usual ones")
    host_watts: float = Field(0, description="mean power of a busy host, its share of the network included", ge=0)
    pue: float = Field(0, description="power of the building by power of its computers; 0: not known", ge=0)
    region: str = Field("", description="of its electricity, for CO2: a country (USA, FRA) or a state (US-IL)")
    grams_per_kwh: float = Field(0, description="CO2 of its electricity where it differs from the region's", ge=0)
    storage_gb_s: float = Field(0, description="GB/s that all ranks together write to the file system", ge=0)
    host_mtbf_hours: float = Field(0, description="mean time between failures of one host that end a job", ge=0)
    start_s: float = Field(0, description="from the start of a job to its first step, at scale", ge=0)

    @field_validator("links")
    @classmethod
    def _nearest_first(cls, links: tuple[Link, ...]) -> tuple[Link, ...]:
        reach = [link.ranks for link in links]
        if links and (reach[-1] != 0 or 0 in reach[:-1] or reach[:-1] != sorted(set(reach[:-1]))):
            raise ValueError(f"links must join more and more ranks and the last one all (ranks: 0), not {reach}")
        return links


class Facts(Section):
    """The facts of one machine. The defaults are those of a host that nothing is known of."""

    description: str = ""
    device: Literal["", "cpu", "nvidia", "amd", "intel"] = Field("", description="accelerator vendor; empty: detected")
    scheduler: SchedulerName = Field("none", description="of jobs submitted from a login node")
    starter: StarterName | Literal[""] = Field("", description="of ranks; empty: by scheduler and what is on PATH")
    starter_args: Words = Field((), description="launcher options that this machine needs")
    agent_args: Words = Field((), description="replaces starter_args where the launcher starts one agent per host")
    ranks_per_host: int = Field(0, description="ranks per host; 0: its visible accelerators", ge=0)
    device_memory_gib: float = Field(0, description="GiB of one rank's device, of the smallest kind; 0: unknown", ge=0)
    larger_devices: dict[str, float] = Field(
        {}, description="a word of the job's constraint or queue: the GiB of its devices"
    )
    cores: Words = Field((), description="cores of each socket, in the order of local ranks, e.g. '0-51 52-103'")
    agent_cores: Words = Field((), description="instead of cores under agents, whose ranks take devices by number")
    threads_per_core: int = Field(0, description="SLURM: CPUs that -c counts for one core; 0: not known", ge=0)
    reserved_cores: str = Field("", description="cores that are left to the system, e.g. '0,52'")
    fabric: Words = Field((), description="host names on the fast network, e.g. '{host}-hsn0'; the first that resolves")
    environment: dict[str, str] = Field(
        {}, description="variables of communication libraries; the user's own take precedence"
    )
    container: ContainerFacts = ContainerFacts()
    submit: SubmitFacts = SubmitFacts()
    plan: PlanFacts = PlanFacts()


def parse_facts(content: dict[Any, Any], where: str) -> Facts:
    """Return the ``facts`` mapping of a machine file.

    Raises:
        ConfigError: one line, beginning with ``where``, for a key or a value that is none.
    """
    try:
        return Facts.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in ("facts", *first["loc"]))
        reason = "no such fact" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(f"{where}: {name}: {reason}; known facts: {', '.join(Facts.model_fields)}") from None
