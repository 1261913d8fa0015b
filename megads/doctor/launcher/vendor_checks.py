"""This host against the rows of its vendor and network: variables, masks, plugins, versions, cores. Nothing is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from megads.cluster.machine import visible_accelerators
from megads.device.needs import TABLE, Needs, State, read_needs
from megads.doctor.launcher.host_checks import Site
from megads.launch.preflight.packages import numbers
from megads.launch.schedulers.allocation import Allocation
from megads.monitor.check_stages import Verdict

PACKAGES = {"torch": ("torch",), "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "oneccl": ("oneccl",)}
"""Name in the table -> packages of the registry that bring it."""


@dataclass(frozen=True)
class Compared:
    """One row and this host."""

    state: State
    name: str
    found: str  # the value here, and where it is from
    advice: str = ""  # why, and the line to set
    is_harmful: bool = False  # known to hang, to crash or to give wrong numbers

    def line(self) -> str:
        """Return the row for a terminal."""
        found = f"={self.found}" if self.found else ""
        return f"{self.state:<8} {self.name}{found}" + (f": {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Host:
    """What is compared.

    Attributes:
        env: of the ranks: the user's, and the machine's where the user sets nothing.
        origins: variable -> who sets it.
        num_hosts: of the allocation; 0: not known, as on a login node.
        ranks: on this host.
        versions: package -> version.
        devices: names of the devices, where the driver says.
        has_binding: whether ranks are bound to cores.
    """

    vendor: str
    fabric: str
    machine: str
    env: Mapping[str, str]
    origins: Mapping[str, str]
    num_hosts: int
    ranks: int
    visible: int
    versions: Mapping[str, str]
    devices: tuple[str, ...] = ()
    numa_nodes: int = 1
    has_binding: bool = True


def check_vendor(
    site: Site,
    allocation: Allocation,
    *,
    version_of: Callable[[str], str] | None = None,
    root: Path = Path("/"),
) -> Verdict:
    """Compare this host with its vendor's rows of ``envs/vendors/needs.yaml``.

    Args:
        version_of: package of the registry -> its version, "" where it is not installed.
        root: stands in for / in tests.

    Raises:
        ConfigError: the table cannot be read.
    """
    env = site.request.env
    seen = visible_accelerators(env, root / "dev", root / "sys")
    vendor = next(iter(seen), "") or site.facts.device
    if vendor in ("", "cpu") or env.get("MEGADS_DEVICE") == "cpu":
        return Verdict("ok", "no accelerator, nothing to compare")
    if not (site.request.root / TABLE).is_file():
        return Verdict("skipped", f"{site.request.root} has no {TABLE}")
    needs = read_needs(site.request.root)
    machine_sets = {name: value for name, value in site.facts.environment.items() if not env.get(name)}
    host = Host(
        vendor=vendor,
        fabric=needs.fabric_of(site.run.machine, root),
        machine=site.run.machine,
        env={**env, **machine_sets},
        origins=dict.fromkeys(machine_sets, f"machine {site.run.machine}"),
        num_hosts=len(allocation.hosts) if allocation.world_size else 0,
        ranks=allocation.ranks_per_host,
        visible=seen.get(vendor, 0),
        versions=_versions(version_of or _installed),
        devices=device_names(root),
        numa_nodes=max(1, len(list((root / "sys/devices/system/node").glob("node[0-9]*")))),
        has_binding=bool(
            site.facts.cores or site.run.launch.cpu_bind or "closest" in " ".join(site.facts.starter_args)
        ),
    )
    return verdict(host, list(compare(needs, host)))


def verdict(host: Host, rows: list[Compared]) -> Verdict:
    """Return the stage's verdict: failed where a row is known to do harm."""
    counts = [f"{sum(row.state == state for row in rows)} {state}" for state in ("ok", "differs", "missing")]
    where = f"{host.vendor} devices, {host.fabric or 'no known'} network"
    notes = ("one host: the network's rows are not compared",) if host.num_hosts == 1 and host.fabric else ()
    harmful = [row for row in rows if row.is_harmful]
    text = f"{where}: {', '.join(counts)}"
    return Verdict(
        "failed" if harmful else "ok",
        f"{'; '.join(row.name for row in harmful)}: {text}" if harmful else text,
        notes=notes,
        details=tuple(row.line() for row in rows if row.state != "ok"),
        data=[asdict(row) for row in rows],
    )


def compare(needs: Needs, host: Host) -> Iterator[Compared]:
    """Yield every row that concerns ``host``, with what is there."""
    yield from _variables(needs, host)
    yield from _allocators(needs, host)
    yield from _masks(needs, host)
    yield from _libraries(needs, host)
    yield from _versions_with_defects(needs, host)
    yield from _bindings(needs, host)


def _is_used(host: Host, fabric: str, min_hosts: int = 1) -> bool:
    """Return whether a row of a network matters: ranks of one host do not use it."""
    return not fabric or (fabric == host.fabric and host.num_hosts != 1 and not 0 < host.num_hosts < min_hosts)


def _variables(needs: Needs, host: Host) -> Iterator[Compared]:
    for row in needs.variables_of(host.vendor, host.fabric):
        if not _is_used(host, row.fabric, row.min_hosts):
            continue
        value = host.env.get(row.name, "")
        state = row.state(value)
        origin = host.origins.get(row.name, "your environment" if value else "")
        found = f"{value} ({origin})" if value else ""
        if state == "ok" or (host.machine in row.exceptions and not value):
            yield Compared("ok", row.name, found)
            continue
        is_harmful = value in row.harmful and row.level == "required"
        yield Compared(state, row.name, found, f"{row.why}; {row.line} ({row.level})", is_harmful)


def _allocators(needs: Needs, host: Host) -> Iterator[Compared]:
    for row in needs.allocators:
        if host.vendor not in row.vendors:
            continue
        names = [name for name in (row.variable, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF") if name]
        name, value = next(((each, host.env[each]) for each in names if host.env.get(each)), (row.variable, ""))
        if row.harmful and row.harmful in value:
            yield Compared("differs", name, value, f"{row.why}; unset {name}", is_harmful=True)
        else:
            # Without a value megads' own default holds, and another one is the user's choice.
            yield Compared("ok", name, value)


def _masks(needs: Needs, host: Host) -> Iterator[Compared]:
    rows = [row for row in needs.masks if host.vendor in row.vendors and row.variable in host.env]
    for row in rows:
        value = host.env[row.variable]
        names = [name.strip() for name in value.split(",") if name.strip()]
        if len(names) != len(set(names)):
            yield Compared("differs", row.variable, value, f"names a device twice; unset {row.variable}", True)
        elif row.is_relative and len(rows) > 1:
            others = " and ".join(each.variable for each in rows if each is not row)
            yield Compared("differs", row.variable, value, f"with {others}: {row.why}; unset {row.variable}")
        elif 0 < host.visible < host.ranks:
            what = "device is" if host.visible == 1 else "devices are"
            yield Compared(
                "differs",
                row.variable,
                value,
                f"{host.visible} {what} left for {host.ranks} ranks of this host, and every rank inherits the mask; "
                f"unset {row.variable}, or set NGPU_PER_HOST={host.visible}",
                is_harmful=True,
            )
        else:
            yield Compared("ok", row.variable, value)


def _libraries(needs: Needs, host: Host) -> Iterator[Compared]:
    for row in needs.libraries:
        if host.vendor not in row.vendors or not _is_used(host, row.fabric):
            continue
        plugin = host.env.get("NCCL_NET_PLUGIN", "")
        folders = [Path(folder) for folder in host.env.get("LD_LIBRARY_PATH", "").split(":") if folder]
        files = [Path(plugin)] if "/" in plugin else [folder / name for folder in folders for name in row.files]
        if found := next((path for path in files if path.is_file()), None):
            yield Compared("ok", row.name, str(found))
        else:
            why = f"no {' or '.join(row.files)} in LD_LIBRARY_PATH or NCCL_NET_PLUGIN: hosts exchange data over TCP"
            yield Compared("missing", row.name, "", f"{why}; {row.how}")


def _versions_with_defects(needs: Needs, host: Host) -> Iterator[Compared]:
    for row in needs.versions:
        version = host.versions.get(row.package, "")
        if host.vendor not in row.vendors or not _is_used(host, row.fabric):
            continue
        if row.devices and not any(row.devices in name for name in host.devices):
            continue
        if row.concerns(version, host.env):
            lines = " ".join(f"{name}={value}" for name, value in row.unless.items())
            newer = f"use {row.package} {row.fixed} or newer" if row.fixed else ""
            cure = " or ".join(each for each in (newer, f"export {lines}" if lines else "") if each)
            yield Compared("differs", row.package, version, f"{row.defect}; {cure}", is_harmful=True)
        elif numbers(version):
            yield Compared("ok", row.package, version)


def _bindings(needs: Needs, host: Host) -> Iterator[Compared]:
    for row in needs.bindings:
        if host.vendor not in row.vendors or host.ranks < 2 or host.numa_nodes < 2:
            continue
        if host.has_binding:
            yield Compared("ok", "CPU_BIND", "")
        else:
            yield Compared("missing", "CPU_BIND", "", f"{row.why}; {row.how}")


def device_names(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the names that NVIDIA's driver gives the devices of this host; others do not say without a library."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(found)


def _versions(version_of: Callable[[str], str]) -> dict[str, str]:
    found = {name: next(filter(None, map(version_of, packages)), "") for name, packages in PACKAGES.items()}
    return {name: version for name, version in found.items() if version}


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
