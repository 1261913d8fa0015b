"""What the launcher checks by itself, without torch: this host, before a rank is started."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue

from megads.cluster.disk import probe_disk
from megads.cluster.hosts import this_host
from megads.cluster.machine import available_memory, count_cores, visible_accelerators
from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.doctor.ranks.host_groups import address_of
from megads.launch.preflight.packages import check_versions, packages_of
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation
from megads.monitor.check_stages import Verdict, some
from megads.text.plural import plural
from megads.text.units import size

SAMPLE_BYTES = 64 * 2**20
LITTLE_DISK = 2**30
SUBMIT = {"pbs": "qsub", "slurm": "sbatch", "flux": "flux", "lsf": "bsub"}
"""Scheduler -> its program."""

RESOLVERS = 64
"""Names that are looked up at the same time."""


@dataclass(frozen=True)
class Site:
    """What is known before anything is checked."""

    request: TrainRequest
    run: RunConfig  # the settings
    facts: Facts  # of the machine


def scheduler_of(site: Site) -> str:
    """Return the scheduler that jobs of this machine go through; "" where there is none."""
    if site.facts.scheduler != "none":
        return site.facts.scheduler
    path = site.request.env.get("PATH", "")
    return next((name for name, program in SUBMIT.items() if shutil.which(program, path=path)), "")


def describe_machine(site: Site, allocation: Allocation) -> Verdict:
    """Return what this host is, and of which allocation."""
    hosts, ranks = len(allocation.hosts), allocation.world_size
    where = f"job {allocation.job_id} of {allocation.scheduler}" if allocation.job_id else "no job"
    text = (
        f"{site.run.machine} ({site.facts.description or 'nothing known'}), host {site.request.hostname}, {where}, "
        f"{plural(hosts, 'host')}, {plural(ranks, 'rank') if ranks else 'no ranks'}"
    )
    data = {
        "machine": site.run.machine,
        "host": site.request.hostname,
        "scheduler": allocation.scheduler,
        "job": allocation.job_id,
        "hosts": list(allocation.hosts),
        "spare": list(allocation.spare),
        "ranks_per_host": allocation.ranks_per_host,
        "ranks": ranks,
    }
    scheduler = scheduler_of(site)
    outside = allocation.scheduler == "none" and not allocation.job_id and scheduler and not site.run.launch.hostfile
    note = f"not inside a job of {scheduler}: only this host is checked, which may be a login node" if outside else ""
    return Verdict("ok", text, notes=(note,) if note else (), data=data)


def check_python(site: Site) -> Verdict:
    """Check the packages that a run needs, against versions known to be wrong.

    Raises:
        DependencyError: one is missing, or trains ``site.run`` wrongly.
    """
    check_versions(site.run)
    versions = {"Python": ".".join(map(str, sys.version_info[:3]))}
    versions |= {package: metadata.version(package) for package in packages_of(site.run)}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Verdict("ok", f"{text}; {site.request.python}", data=versions)


def check_checkout(site: Site) -> Verdict:
    """Check that the checkout's machine files can be read, as every host will have to."""
    wanted = [site.request.root / "envs" / "machines.txt", Path(__file__)]
    unreadable = [str(path) for path in wanted if not os.access(path, os.R_OK)]
    if unreadable:
        return Verdict("failed", f"cannot be read: {some(unreadable)}; MEGADS_ROOT should be the checkout, or unset")
    package = Path(__file__).parents[2]
    return Verdict(
        "ok",
        f"{site.request.root}, megads from {package}",
        data={"root": str(site.request.root), "package": str(package)},
    )


def check_disk(folder: Path) -> Verdict:
    """Check space and write speed of the disk of ``folder``, which need not exist yet.

    Raises:
        LaunchError: it cannot be written.
    """
    disk = probe_disk(folder, SAMPLE_BYTES)
    notes = (f"only {size(disk.free)} left",) if disk.free < LITTLE_DISK else ()
    text = f"{folder.absolute()}: {size(disk.free)} free, {size(disk.write_per_s)}/s written"
    return Verdict("ok", text, notes=notes, data={"free": disk.free, "write_per_s": disk.write_per_s})


def check_accelerators(site: Site, allocation: Allocation) -> Verdict:
    """Say which accelerators this host shows, and whether the ranks on it have one each."""
    seen = visible_accelerators(site.request.env)
    text = ", ".join(f"{count} {vendor}" for vendor, count in seen.items()) or "no accelerator"
    memory, cores = available_memory(), count_cores()
    text += f", {plural(cores, 'core')}, {size(memory)} of memory available"
    data = {"accelerators": seen, "cores": cores, "memory_bytes": memory}
    expected = site.facts.device
    uses_them = allocation.world_size and this_host() in allocation.hosts
    if expected not in ("", "cpu") and not seen and uses_them and site.request.env.get("MEGADS_DEVICE") != "cpu":
        return Verdict("failed", f"{text}; machine {site.run.machine} should show {expected} devices here", data=data)
    used = next(iter(seen.values()), 0)
    idle = used - allocation.ranks_per_host
    notes = (f"{idle} of {used} accelerators of a host are not used (NGPU_PER_HOST)",) if idle > 0 and seen else ()
    if site.request.env.get("MEGADS_DEVICE") == "cpu":
        notes = ()
    return Verdict("ok", text, notes=notes, data=data)


def check_limits(world_size: int) -> Verdict:
    """Say which limits of this process are low for ``world_size`` ranks."""
    names = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "stack": resource.RLIMIT_STACK,
    }
    limits = {name: resource.getrlimit(number) for name, number in names.items()}
    shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    notes = []
    _, files = limits["open files"]
    wanted = 2 * world_size + 256
    if files != resource.RLIM_INFINITY and files < wanted:
        notes.append(f"ulimit -Hn {files}: rank 0 opens up to {wanted} connections and files; ask for a higher limit")
    if 0 < shm < 2**26:
        notes.append(f"/dev/shm has {size(shm)} free; ranks of a host exchange data through it (docker: --shm-size)")
    shown = {name: _limit(soft, name) for name, (soft, _) in limits.items()}
    text = ", ".join(f"{name} {value}" for name, value in shown.items()) + f", /dev/shm {size(shm)}"
    return Verdict("ok", text, notes=tuple(notes), data=shown | {"shm_bytes": shm})


def _limit(value: int, name: str) -> str:
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return size(value) if name in ("locked memory", "stack") else str(value)


def check_port(port: str, address: str) -> Verdict:
    """Check that ranks can listen on the port of the run; of another host only a rank there can tell."""
    if not port.isdigit():
        return Verdict("skipped", "one rank needs no port")
    try:
        own = {found[4][0] for found in socket.getaddrinfo(this_host(), None)}
        there = {found[4][0] for found in socket.getaddrinfo(address, None)}
    except OSError:
        own, there = set(), set()
    if address not in ("127.0.0.1", "localhost", this_host()) and not own & there:
        return Verdict("skipped", f"port {port} is on {address}, which is not this host; its rank 0 checks it")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
            probe.listen(1)
            with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
                pass
        except OSError as error:
            return Verdict("failed", f"port {port}: {error.strerror or error}; rerun, it picks another port")
    return Verdict("ok", f"{address} port {port} can be listened on", data={"address": address, "port": int(port)})


def check_names(hosts: Sequence[str], limit_s: float, *, scheduler: str = "none") -> Verdict:
    """Look up every host of the allocation, maybe thousands, in ``limit_s`` for all of them together.

    ``scheduler`` may know addresses for names that do not resolve.
    """
    addresses = _resolve_all(hosts, limit_s)
    silent = [host for host in hosts if host not in addresses]
    if silent:
        return Verdict("failed", f"no answer for {some(silent)} in {limit_s:g} s; ask the site about its name service")
    unknown = [host for host in hosts if not addresses[host]]
    here = this_host().split(".")[0]
    others = [host for host in hosts if len(hosts) > 1 and host.split(".")[0] != here]
    loopback = [host for host in others if addresses[host].startswith("127.")]
    if len(hosts) == 1 and unknown:
        note = f"{hosts[0]}, this host's own name, does not resolve; its ranks join at 127.0.0.1"
        return Verdict("ok", "one host", notes=(note,))
    if unknown and scheduler != "none":
        note = f"no address for {some(unknown)}; only {scheduler} knows where they are"
        return Verdict("ok", f"{len(hosts) - len(unknown)} of {len(hosts)} hosts resolve", notes=(note,), data=unknown)
    if unknown:
        return Verdict("failed", f"no address for {some(unknown)}; name hosts that resolve in HOSTFILE", data=unknown)
    if loopback:
        return Verdict(
            "failed", f"a loopback address for another host, {some(loopback)}; see /etc/hosts", data=loopback
        )
    return Verdict("ok", f"{plural(len(hosts), 'host')} resolve{'s'[: len(hosts) == 1]}")


def _resolve_all(hosts: Sequence[str], limit_s: float) -> dict[str, str]:
    """Return the addresses that were found in time, "" for a name without one."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for host in hosts:
        waiting.put(host)
    found: dict[str, str] = {}

    def serve() -> None:
        with suppress(Empty):
            while True:
                host = waiting.get_nowait()
                found[host] = address_of(host)

    # Daemons, unlike an executor's threads: a name service that hangs must not keep the program.
    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(RESOLVERS, len(hosts)))]
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found)
