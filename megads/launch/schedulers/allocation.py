"""What may be used: the hosts, and how many ranks on each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from megads.cluster.hosts import is_this_host, read_host_file, this_host
from megads.cluster.machine import count_accelerators
from megads.cluster.ranks import rank_variables
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.config.sizes import model_degree
from megads.errors import LaunchError
from megads.launch.schedulers.base import Scheduler
from megads.launch.schedulers.flux import FLUX
from megads.launch.schedulers.lsf import LSF
from megads.launch.schedulers.pbs import PBS
from megads.launch.schedulers.slurm import SLURM
from megads.launch.user_ranks.entry import Started, even_layout
from megads.text.plural import plural

UNKNOWN = Facts()
"""Of a machine that nothing is known of."""


@dataclass(frozen=True)
class Allocation:
    """The hosts of a run and how many ranks each of them takes.

    ``spare`` are hosts of the same job that are not used; they replace hosts that fail.
    ``num_ranks`` is given when the last host takes fewer ranks than the others.
    """

    scheduler: str
    hosts: tuple[str, ...]
    ranks_per_host: int
    job_id: str = ""
    spare: tuple[str, ...] = ()
    num_ranks: int = 0

    @property
    def world_size(self) -> int:
        """Ranks on all hosts together."""
        return self.num_ranks or len(self.hosts) * self.ranks_per_host


def unnamed_hosts(scheduler: str, count: int, ranks_per_host: int) -> Allocation:
    """Return ``count`` hosts whose names are not known yet."""
    return Allocation(scheduler, tuple(f"host{number}" for number in range(1, count + 1)), ranks_per_host)


NO_SCHEDULER = Scheduler(
    "none", "this host", inside=(), job_id=(), hosts=lambda env: (this_host(),), only_its_own=False
)
SCHEDULERS = {row.name: row for row in (FLUX, PBS, SLURM, LSF, NO_SCHEDULER)}
"""In this order: a Flux instance may run inside a job of another scheduler, and outside of every job there is none."""


def find_allocation(
    run: RunConfig, env: Mapping[str, str], facts: Facts = UNKNOWN, started: Started | None = None
) -> Allocation:
    """Return the hosts to use and the number of ranks on each.

    Hosts: ``launch.hostfile``, else what the scheduler says, else this one; of these the
    first ``launch.num_hosts``. Ranks on each: ``launch.ranks_per_host``, else the machine's
    ``facts.ranks_per_host``, else one for each accelerator visible here, else on CPU hosts
    just enough for TP x PP x SP x DP. Ranks that the user started are where they are.

    Raises:
        LaunchError: this process is one rank of several itself; the scheduler's or the
            user's list of hosts cannot be read, or has fewer than asked for; there are more
            ranks than accelerators; ranks do not spread evenly over the hosts; a machine that
            trains on accelerators shows none.
    """
    if started is not None:
        return _of_started(run, env, facts, started)
    found, job, hosts, spare = find_hosts(run.launch, env)
    here = any(is_here(host, env) for host in hosts)
    devices = count_accelerators(env)
    if not devices and env.get("MEGADS_DEVICE") != "cpu" and needs_accelerators(run, facts):
        known = run.launch.ranks_per_host or facts.ranks_per_host
        if here or not known:
            raise LaunchError(_no_accelerator(run.machine, here))
    ranks = ranks_per_host(run.launch, facts, devices, here=here) or layout_per_host(run, len(hosts))
    return Allocation(found.name, hosts, ranks, job, spare)


def _of_started(run: RunConfig, env: Mapping[str, str], facts: Facts, started: Started) -> Allocation:
    """Return the allocation of ranks that are there already.

    Raises:
        LaunchError: settings contradict it, or the machine trains on accelerators and none is visible.
    """
    hosts, each = even_layout(started)
    given = (("NHOSTS", run.launch.num_hosts, len(hosts)), ("NGPU_PER_HOST", run.launch.ranks_per_host, each))
    for name, wanted, there in given:
        if wanted not in (0, there):
            raise LaunchError(
                f"{name}={wanted}, and {started.by} started {plural(len(started.hosts), 'rank')} on {len(hosts)} "
                f"host{'s'[: len(hosts) > 1]}; unset {name}, or start {wanted} "
                f"{'ranks on each host' if name != 'NHOSTS' else 'hosts'}"
            )
    if env.get("MEGADS_DEVICE") != "cpu" and needs_accelerators(run, facts) and not count_accelerators(env):
        raise LaunchError(_no_accelerator(run.machine, here=True))
    found = _scheduler_of(env)
    return Allocation(found.name, hosts, each, job_id(found, env))


def job_id(scheduler: Scheduler, env: Mapping[str, str]) -> str:
    """Return the id of the job of ``scheduler`` that this process is in, "" where no variable says it."""
    return next((env[name] for name in scheduler.job_id if env.get(name)), "")


def _scheduler_of(env: Mapping[str, str]) -> Scheduler:
    return next(row for row in SCHEDULERS.values() if all(env.get(name) for name in row.inside))


def find_hosts(launch: LaunchConfig, env: Mapping[str, str]) -> tuple[Scheduler, str, tuple[str, ...], tuple[str, ...]]:
    """Return the scheduler, its job id, the hosts to use, and the hosts that are left over.

    Raises:
        LaunchError: as :func:`find_allocation`.
    """
    _refuse_a_rank(env)
    found = _scheduler_of(env)
    job = job_id(found, env)
    origin = f"{found.title} {job}".rstrip()
    needs_the_jobs = found.only_its_own or not launch.hostfile
    hosts = found.hosts(env) if needs_the_jobs else ()
    if launch.hostfile:
        given = f"HOSTFILE={launch.hostfile}"
        listed = read_host_file(Path(os.path.expanduser(launch.hostfile)), "HOSTFILE")
        hosts = _of_the_job(listed, hosts, f"{given} names", origin, env) if found.only_its_own else listed
        origin = given
    count = launch.num_hosts or len(hosts)
    if count > len(hosts):
        raise LaunchError(f"NHOSTS={count}: {origin} has {plural(len(hosts), 'host')}; use at most {len(hosts)}")
    return found, job, hosts[:count], hosts[count:]


def in_a_job(env: Mapping[str, str]) -> bool:
    """Return whether this process is inside a job of some scheduler."""
    return _scheduler_of(env) is not NO_SCHEDULER


def job_notes(run: RunConfig, allocation: Allocation, env: Mapping[str, str], folder: Path) -> Iterable[str]:
    """Return a line for everything about the job of a run in ``folder`` that would otherwise be silent."""
    count, spare = len(allocation.hosts), len(allocation.spare)
    return SCHEDULERS[allocation.scheduler].notes(run, env, count, spare, folder)


def is_here(host: str, env: Mapping[str, str]) -> bool:
    """Return whether ``host`` is this one, by its own name or by the name that SLURM has for it."""
    return is_this_host(host) or (bool(host) and host == env.get("SLURMD_NODENAME"))


def ranks_per_host(launch: LaunchConfig, facts: Facts, devices: int, *, here: bool) -> int:
    """Return how many ranks a host takes, 0 when nothing says so.

    Args:
        devices: accelerators that are visible on this host.
        here: whether this host is one of those that run ranks; only then do its accelerators count.

    Raises:
        LaunchError: more ranks than accelerators were asked for.
    """
    if launch.ranks_per_host and here and devices and launch.ranks_per_host > devices:
        raise LaunchError(
            f"NGPU_PER_HOST={launch.ranks_per_host}: this host shows {devices} accelerators, one for each rank; "
            f"use at most {devices}, or MEGADS_DEVICE=cpu to train on the CPU"
        )
    if launch.ranks_per_host:
        return launch.ranks_per_host
    if facts.ranks_per_host and here and devices:
        return min(facts.ranks_per_host, devices)  # the user may have masked some
    return facts.ranks_per_host or devices


def layout_per_host(run: RunConfig, hosts: int) -> int:
    """Return the fewest ranks on each of ``hosts`` that the degrees of the layout fill.

    Raises:
        LaunchError: they do not spread evenly.
    """
    model, data = model_degree(run), run.parallel.data
    wanted = model * max(data, 1)
    each = -(-wanted // hosts)
    total = each * hosts
    if total != wanted if data else total % model:
        layout = "TP x PP x SP x DP" if data else "TP x PP x SP"
        fitting = [str(count) for count in range(1, hosts) if wanted % count == 0]
        raise LaunchError(
            f"{layout} = {plural(wanted, 'rank')} do not spread evenly over {plural(hosts, 'host')}; "
            f"use NHOSTS={' or '.join(fitting[-3:])}, or set NGPU_PER_HOST"
        )
    return each


def needs_accelerators(run: RunConfig, facts: Facts) -> bool:
    """Return whether a machine trains on accelerators only."""
    return run.machine == "generic" or facts.device not in ("", "cpu")


def _no_accelerator(machine: str, here: bool) -> str:
    if here:
        return (
            f"machine {machine} trains on accelerators and none is visible here; MACHINE=cpu trains "
            "without them, and --dry-run previews the run"
        )
    return (
        f"machine {machine} trains on accelerators and this host, which is not one of the run's, shows none; "
        "set NGPU_PER_HOST, the ranks on each host"
    )


def _of_the_job(
    listed: tuple[str, ...], job: tuple[str, ...], names: str, origin: str, env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the ``listed`` hosts as the job spells and orders them: its launcher numbers ranks in that order."""
    wanted = {host.split(".")[0] for host in listed}
    if any(is_this_host(host) for host in listed):
        wanted |= {host.split(".")[0] for host in job if is_here(host, env)}
    chosen = tuple(host for host in job if host.split(".")[0] in wanted)
    known = {host.split(".")[0] for host in chosen}
    foreign = [host for host in listed if host.split(".")[0] not in known and not is_this_host(host)]
    if foreign or not chosen:
        raise LaunchError(f"{names} {(foreign or listed)[0]}, which {origin} does not have; name some of its hosts")
    return chosen


def _refuse_a_rank(env: Mapping[str, str]) -> None:
    """Refuse to launch from a rank: each of them would start the whole run."""
    found = rank_variables(env)
    if found:
        size, rank = found[0]
        raise LaunchError(
            f"this process is one rank of several itself ({rank}={env[rank]}, {size}={env[size]}); start megads "
            "once, not on every rank (if an earlier launcher left the variables: unset "
            f"{' '.join(dict.fromkeys(rank for _, rank in found))})"
        )
