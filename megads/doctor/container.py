"""What a process in a container finds there: one line each, with what to do where something is missing."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.cluster.container import Inside, container_of
from megads.cluster.hosts import this_host
from megads.cluster.machine import machine_name, visible_accelerators
from megads.cluster.ranks import RankInfo, find_ranks
from megads.config.sources.presets import read_machine
from megads.device.names import BACKENDS, wanted_device
from megads.errors import MegadsError
from megads.release.commit import own_commit
from megads.release.versions import VERSION
from megads.text.plural import plural
from megads.text.units import size

SMALLEST_SHM = 512 << 20
"""Bytes of /dev/shm; NCCL's transport inside a host takes some hundred MB, Docker's default is 64 MB."""

MPI = ("mpi", "mpi_cray", "mpich")
PMI = ("pmi", "pmi2", "pmix")
FABRIC = ("fabric", "cxi", "ibverbs")
PLUGINS = ("nccl-net", "rccl-net")
OF_PMI = ("PMI_", "PMIX_", "PALS_")

DEVICE_OPTION = {
    "nvidia": "apptainer: --nv (CONTAINER_ARGS=--nv); podman: --device=nvidia.com/gpu=all; pyxis: enroot's NVIDIA hook",
    "amd": "apptainer: --rocm; podman and docker: --device=/dev/kfd --device=/dev/dri",
    "intel": "bind /dev/dri",
}


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    name: str
    text: str
    cure: str = ""  # what to do; empty: all right

    def line(self) -> str:
        """Return it for people."""
        mark = "FAIL" if self.cure else "ok"
        return f"{mark:4} {self.name:9} {self.text}{f'; {self.cure}' if self.cure else ''}"


@dataclass(frozen=True)
class Place:
    """Where the checks look."""

    env: Mapping[str, str]
    folder: Path  # of run folders
    root: Path  # of the checkout
    top: Path = Path("/")  # of the file system


def check_inside(env: Mapping[str, str], folder: Path, root: Path, write: Callable[[str], object]) -> int:
    """Write what this process finds and return the exit code; ranks after the first report problems alone."""
    place = Place(env, folder, root)
    info, findings = _rank(place)
    bad = 0
    for finding in (*findings, *(found for check in CHECKS for found in check(place))):
        bad += bool(finding.cure)
        if info is None or info.rank == 0:
            write(finding.line())
        elif finding.cure:
            write(f"[rank {info.rank} host {this_host()}] {finding.line()}")
    return 1 if bad else 0


def _rank(place: Place) -> tuple[RankInfo | None, list[Finding]]:
    """Return which rank this is, and whether the launcher's variables came through."""
    try:
        info = find_ranks(place.env, asks_mpi=False)
    except MegadsError as error:
        return None, [Finding("launcher", str(error), _pass_variables())]
    if info.world_size == 1:
        return info, [Finding("launcher", "none: one process; `megads launch --container IMAGE -- ...` starts ranks")]
    seen = sorted({name.partition("_")[0] + "_*" for name in place.env if name.startswith((*OF_PMI, "SLURM_"))})
    more = f", variables {' '.join(seen)}" if seen else ""
    return info, [Finding("launcher", f"{info.family}: rank {info.rank} of {info.world_size}{more}")]


def _pass_variables() -> str:
    return "let the runtime pass the launcher's variables (apptainer: no --cleanenv; podman: --env=SLURM_* --env=PMI*)"


def check_container(place: Place) -> Iterator[Finding]:
    """Find the runtime and the image."""
    found = container_of(place.env) or _by_file(place.top)
    if found is None:
        cure = "call it inside: megads launch --container IMAGE -- python3 -m megads container check"
        yield Finding("container", "none: this process is outside", cure)
        return
    yield Finding("container", f"{found.runtime}, image {found.image or 'not known'}, {_system(place.top)}")


def _by_file(top: Path) -> Inside | None:
    files = {"run/.containerenv": "podman", ".dockerenv": "docker", "etc/enroot": "enroot"}
    return next((Inside(name) for file, name in files.items() if (top / file).exists()), None)


def _system(top: Path) -> str:
    try:
        lines = (top / "etc/os-release").read_text(encoding="utf8").splitlines()
    except OSError:
        return "system not known"
    return next((line.split("=", 1)[1].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), "Linux")


def check_python(place: Place) -> Iterator[Finding]:
    """Find Python, and the megads that it imports."""
    version = ".".join(map(str, sys.version_info[:3]))
    old = "" if sys.version_info >= (3, 10) else "use an image with Python 3.10 or later, or set CONTAINER_PYTHON"
    yield Finding("python", f"{version}, {sys.executable}", old)
    where = Path(__file__).resolve().parents[2]
    commit = own_commit()
    yield Finding("megads", f"{VERSION}{'' if commit == '?' else f', commit {commit}'}, in {where}")


def check_torch(place: Place) -> Iterator[Finding]:
    """Find torch, the backend of the device, and the devices."""
    try:
        import torch
        from torch import distributed
    except ImportError as error:
        yield Finding("torch", f"cannot be imported ({error})", "install torch in the image (containers/README.md)")
        return
    build = torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None)
    made_for = (
        f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"HIP {torch.version.hip}"
        if torch.version.hip
        else "XPU"
    )
    yield Finding("torch", f"{torch.__version__}, built for {made_for if build else 'CPUs'}")
    device = _wanted(place)
    yield _devices(place, device)
    names = BACKENDS[device].own
    found = [name for name in names if distributed.is_backend_available(name)]
    missing = "" if found else f"use an image whose torch was built with {' or '.join(names)}"
    yield Finding("backend", f"{found[0] if found else 'none'} of device {device}", missing)


def _wanted(place: Place) -> str:
    """Return the device that ranks are to use: as asked, as the machine has, else as this container shows."""
    asked = wanted_device(place.env)
    machine = machine_name(this_host(), place.env, place.root)
    return asked or read_machine(machine, place.root).facts.device or [*visible_accelerators(place.env), "cpu"][0]


def _devices(place: Place, device: str) -> Finding:
    if device == "cpu":
        return Finding("device", "cpu")
    from megads.device.vendor import VENDORS

    rows = [row for row in VENDORS if row.name == device and row.present()]
    count = rows[0].count() if rows else 0
    files = visible_accelerators(place.env).get(device, 0)
    if count:
        return Finding("device", f"{plural(count, f'{device} device')}")
    seen = f"{files} in /dev, and torch sees none" if files else "none in /dev"
    return Finding("device", f"{device}: {seen}", DEVICE_OPTION[device])


def check_libraries(place: Place) -> Iterator[Finding]:
    """Find MPI, PMI and the libraries of the fabric; torch needs none of them on a host without a fabric."""
    yield Finding("mpi", _listed(found_libraries(MPI, place.env)) or "no libmpi (not needed: ranks meet over TCP)")
    yield Finding("pmi", _listed(found_libraries(PMI, place.env)) or "no libpmi (not needed: ranks read variables)")
    cards = {
        "fabric": sorted((place.top / "dev").glob("cxi[0-9]*")),
        "ibverbs": sorted((place.top / "dev/infiniband").glob("uverbs*")),
    }
    there = found_libraries(FABRIC, place.env)
    lacking = [name for name, files in cards.items() if files and name not in there]
    cure = ""
    if lacking:
        names = " and ".join(f"lib{name}" for name in lacking)
        cure = (
            f"bind the host's {names} and name its folder in LD_LIBRARY_PATH, else ranks use TCP (docs/containers.md)"
        )
    count = sum(map(len, cards.values()))
    shown = f"{plural(count, 'card')} in /dev, {_listed(there) or 'no libfabric'}"
    plugin = _listed(found_libraries(PLUGINS, place.env))
    yield Finding("fabric", shown + (f", {plugin}" if plugin else ""), cure)


def found_libraries(names: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return where the loader finds each of ``names`` (``mpi`` for ``libmpi.so``): a path, or the file's name."""
    found: dict[str, str] = {}
    for name in names:
        for folder in filter(None, env.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
            if files := sorted(Path(folder).glob(f"lib{name}.so*")):
                found[name] = str(files[0])
                break
        else:
            if file := ctypes.util.find_library(name):
                found[name] = file
    return found


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(found.values())


def check_files(place: Place) -> Iterator[Finding]:
    """Find whether ranks can write run folders, and whether shared memory is large enough."""
    bind = f"bind it: CONTAINER_BINDS={place.folder.absolute()}"
    folder = place.folder
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            yield Finding("folder", f"{place.folder.absolute()} is writable")
    except OSError as error:
        yield Finding("folder", f"{place.folder.absolute()}: {error.strerror}", bind)
    shm = place.top / "dev/shm"
    total = shutil.disk_usage(shm).total if shm.is_dir() else 0
    small = "" if total >= SMALLEST_SHM else "share the host's (podman and docker: --ipc=host, or --shm-size=8g)"
    yield Finding("shm", f"{size(total)} in /dev/shm", small)


CHECKS: tuple[Callable[[Place], Iterator[Finding]], ...] = (
    check_container,
    check_python,
    check_torch,
    check_libraries,
    check_files,
)
