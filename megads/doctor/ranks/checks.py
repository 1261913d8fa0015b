"""What every rank does in each stage of the check."""

from __future__ import annotations

import re
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
import torch.distributed as dist

import megads
from megads.cluster.disk import probe_disk
from megads.cluster.ranks import UNKNOWN, RankInfo
from megads.comm.groups import init_distributed
from megads.comm.rendezvous import holds_store, listen, meet
from megads.device import facts
from megads.device.vendor import Vendor, vendor
from megads.doctor.ranks.collectives import DTYPES, Synchronize, Team, check_team, make_team, measure, measure_pairs
from megads.doctor.ranks.host_groups import Place, address_of
from megads.doctor.ranks.protocol import Meeting, Progress
from megads.errors import LaunchError
from megads.launch.preflight.packages import version_of

PACKAGES = ("torch", "deepspeed", "numpy", "transformers", "safetensors")
COMMUNICATION = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|CCL|FI|UCX|UCC|GLOO|TP|MPICH|OFI|RDMAV|IBV|HSA|PSM3|CXI|MVAPICH|I_MPI|OMPI_MCA)_\w+|"
    r"OMP_NUM_THREADS|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|ZE_FLAT_DEVICE_HIERARCHY|ONEAPI_DEVICE_SELECTOR"
)
"""Variables that should be the same on all ranks."""

OF_ONE_RANK = re.compile(
    r"OMPI_MCA_(ess|orte|pmix|initial_wdir|shmem|prte|prrte|pmi)\w*|CCL_LOCAL_(RANK|SIZE)|MPICH_INTERFACE_HOSTNAME"
)
"""Variables that look similar and that launchers set for one rank or host."""

SAMPLE_BYTES = 16 * 2**20
PRODUCT_SIZE = {"cpu": 512, "": 4096}


@dataclass
class Rank:
    """This rank among the others, and what its stages have made so far."""

    info: RankInfo
    env: Mapping[str, str]  # of this process
    host: str
    meeting: Meeting  # where the ranks met
    limit_s: float  # on a stage
    folder: Path  # whose disk is tried
    timeout_s: float = 600.0  # of collectives when the group is made as a run makes it
    progress: Progress = field(default_factory=Progress)
    place: Place = field(default_factory=lambda: Place((0,), (), 1))  # set once rank 0 knows who is where
    row: Vendor | None = None  # of this rank's device
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    teams: dict[str, Team] = field(default_factory=dict)  # groups by name

    @property
    def everybody(self) -> tuple[int, ...]:
        """Return all ranks."""
        return tuple(range(self.info.world_size))

    @property
    def vendor(self) -> Vendor:
        """Return the row of the device; the stage ``devices`` has set it."""
        assert self.row is not None
        return self.row


def report_meeting(rank: Rank) -> dict[str, Any]:
    """Return where this rank is and how quickly the store answers."""
    started = time.perf_counter()
    for _ in range(5):
        rank.meeting.groups.check(["round-trip"])
    return {
        "host": rank.host,
        "connect_s": rank.meeting.connect_s,
        "round_trip_s": (time.perf_counter() - started) / 5,
    }


def report_versions(rank: Rank) -> dict[str, dict[str, str]]:
    """Return the versions, paths and variables that should be the same everywhere."""
    row = vendor(rank.env)
    versions = {"Python": ".".join(map(str, sys.version_info[:3])), "megads": megads.__version__}
    versions |= {package: version_of(package) or "" for package in PACKAGES}
    versions |= {f"torch's {name}": value for name, value in facts.libraries(row).items()}
    versions["driver"] = facts.driver(row)
    environment = {
        name: value
        for name, value in rank.env.items()
        if COMMUNICATION.fullmatch(name) and not OF_ONE_RANK.fullmatch(name)
    }
    paths = {"Python at": sys.executable, "megads at": str(Path(megads.__file__).parent)}
    return {"versions": versions, "paths": paths, "environment": environment}


def report_names(rank: Rank) -> dict[str, Any]:
    """Return what MASTER_ADDR and the host's own name resolve to here, and the network interfaces."""
    master = rank.env.get("MASTER_ADDR", "") if rank.info.world_size > 1 else ""
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    return {
        "master": address_of(master) if master else "",
        "resolve_s": rank.meeting.resolve_s,
        "own": address_of(socket.gethostname()),
        "boot": facts.boot_id(),
        "interface": rank.env.get("GLOO_SOCKET_IFNAME", ""),
        "interfaces": interfaces[:8],
    }


def claim_device(rank: Rank) -> dict[str, Any]:
    """Claim this rank's device and return what it is."""
    rank.row = vendor(rank.env)
    local = rank.info.local_rank
    if local == UNKNOWN:
        local = rank.place.node.index(rank.info.rank)
    rank.device = rank.row.device(local)
    free, total = facts.memory(rank.row, rank.device)
    return {
        "name": rank.row.device_name(rank.device),
        "identity": facts.identity(rank.row, rank.device),
        "free": free,
        "total": total,
    }


def multiply(rank: Rank) -> dict[str, Any]:
    """Multiply matrices of small integers in every dtype and compare with the product in integers."""
    wrong, done = [], []
    length = 256
    row, column = torch.arange(length)[:, None], torch.arange(length)
    # Sums stay below 256, up to which bf16 holds every integer.
    a, b = (row * 7 + column * 3) % 3 - 1, (row * 5 + column * 11) % 3 - 1
    expected = a @ b
    for name in ("fp32", "bf16", "fp16"):
        rank.progress(f"product in {name}")
        x, y = (each.to(rank.device, DTYPES[name]) for each in (a, b))
        bad = (x @ y).cpu().to(torch.int64) != expected
        done.append(name)
        if bad.any():
            wrong.append(f"{int(bad.sum())} of {bad.numel()} elements of a product in {name} are wrong")
    name = "fp32" if rank.device.type == "cpu" else "bf16"
    rank.progress(f"speed in {name}")
    return {"wrong": wrong, "dtypes": done, "timed": name, "tflops": _tflops(rank, DTYPES[name])}


def _tflops(rank: Rank, dtype: torch.dtype) -> float:
    length = PRODUCT_SIZE.get(rank.device.type, PRODUCT_SIZE[""])
    x = torch.ones(length, length, dtype=dtype, device=rank.device)
    x @ x
    times = []
    for _ in range(5):
        rank.vendor.synchronize(rank.device)
        started = time.perf_counter()
        x @ x
        rank.vendor.synchronize(rank.device)
        times.append(time.perf_counter() - started)
    return 2 * length**3 / min(times) / 1e12


def try_disk(rank: Rank) -> dict[str, Any] | None:
    """Write to the run folder's disk, from the first rank of each host; the others return None."""
    if rank.info.rank != rank.place.node[0]:
        return None
    tmp = tempfile.gettempdir()
    found = {"problem": "", "free": 0, "write_per_s": 0.0, "tmp": tmp, "tmp_free": disk_usage(tmp).free}
    try:
        disk = probe_disk(rank.folder, SAMPLE_BYTES)
    except LaunchError as error:
        return found | {"problem": str(error)}
    return found | {"free": disk.free, "write_per_s": disk.write_per_s}


def join_default(rank: Rank) -> dict[str, Any]:
    """Make the group of all ranks without using it: gloo would need a connection between every two of so many ranks."""
    rank.progress("making the group of all ranks")
    dist.init_process_group(
        rank.vendor.backend,
        store=rank.meeting.groups,
        rank=rank.info.rank,
        world_size=rank.info.world_size,
        timeout=timedelta(seconds=2 * rank.limit_s),
    )
    return {"wrong": []}


def join_gloo(rank: Rank) -> dict[str, Any]:
    """Make the group of all ranks; check gloo with it, or with one next to it where the device has its own backend."""
    join_default(rank)
    is_gloo = rank.vendor.backend == "gloo"
    if not is_gloo:
        rank.progress("making a gloo group of all ranks")
    team = make_team(rank.everybody, torch.device("cpu"), "gloo", 2 * rank.limit_s, world=is_gloo)
    rank.progress("a barrier of all ranks")
    dist.monitored_barrier(team.group, timeout=timedelta(seconds=rank.limit_s), wait_all_ranks=True)
    rank.progress("all_reduce of all ranks")
    x = torch.zeros(rank.info.world_size, dtype=torch.int64)
    x[rank.info.rank] = rank.info.rank + 1
    dist.all_reduce(x, group=team.group)
    bad = [each for each in rank.everybody if x[each] != each + 1]
    return {"wrong": [f"all_reduce int64: the part of rank {bad[0]} is wrong"] if bad else []}


def check_alone(rank: Rank) -> dict[str, list[str]]:
    """Check the device's backend in a group of this rank alone."""
    return check_team(_team(rank, "alone", (rank.info.rank,)), rank.progress)


def check_node(rank: Rank) -> dict[str, list[str]]:
    """Check every collective among the ranks of this host."""
    return check_team(_team(rank, "node", rank.place.node), rank.progress)


def check_pair(rank: Rank, number: int) -> dict[str, list[str]]:
    """Check every collective among the ranks of this host and of the one it meets in round ``number``."""
    ranks = rank.place.pairs[number]
    # A host that rests makes a group as well: torch counts those of every rank.
    team = _team(rank, f"pair {number}", ranks or (rank.info.rank,))
    return check_team(team, rank.progress) if ranks else {"wrong": [], "lacks": []}


def check_all(rank: Rank) -> dict[str, list[str]]:
    """Check every collective among all ranks."""
    return check_team(_team(rank, "all", rank.everybody, world=True), rank.progress)


def _team(rank: Rank, name: str, ranks: tuple[int, ...], *, world: bool = False) -> Team:
    rank.progress("making the group")
    rank.teams[name] = make_team(ranks, rank.device, rank.vendor.backend, 2 * rank.limit_s, world=world)
    return rank.teams[name]


def time_node(rank: Rank) -> dict[str, Any]:
    """Measure the ranks of this host together, and neighbours among them."""
    team = rank.teams["node"]
    if team.size < 2:
        return {"rows": [], "pairs": []}
    wait: Synchronize = rank.vendor.synchronize
    return {"rows": measure(team, wait, rank.progress), "pairs": measure_pairs(team, wait, rank.progress)}


def time_pairs(rank: Rank) -> list[list[list[Any]]]:
    """Measure this host with each of the two it meets, one round after another."""
    wait, note = rank.vendor.synchronize, rank.progress
    return [
        measure(rank.teams[f"pair {number}"], wait, note, ("all_reduce",)) if ranks else []
        for number, ranks in enumerate(rank.place.pairs)
    ]


def time_all(rank: Rank) -> list[list[Any]]:
    """Measure all ranks together; on one host they have been measured."""
    if rank.place.num_hosts == 1:
        return []
    return measure(rank.teams["all"], rank.vendor.synchronize, rank.progress)


def _with_a_free_port(rank: Rank) -> Mapping[str, str]:
    """Return the environment with a MASTER_PORT that rank 0 found free, unless a launcher's agent holds the store."""
    if rank.info.world_size == 1 or not holds_store(0, rank.env):
        return rank.env
    if rank.info.rank == 0:
        with listen(rank.env["MASTER_ADDR"], 0) as found:
            rank.meeting.store.set("port of the run", str(found.getsockname()[1]))
    return {**rank.env, "MASTER_PORT": rank.meeting.store.get("port of the run").decode()}


def join_as_a_run(rank: Rank) -> dict[str, list[str]]:
    """Leave the groups and join again as a run does, on another port: this command's store holds the run's."""
    rank.progress("leaving the groups")
    rank.teams.clear()
    dist.destroy_process_group()
    rank.progress("joining as a run does")
    store = meet(rank.info, rank.limit_s, _with_a_free_port(rank))
    init_distributed(rank.vendor.backend, rank.info, rank.timeout_s, device=rank.device, store=store)
    rank.progress("all_reduce of all ranks")
    x = torch.ones(1, device=rank.device)
    dist.all_reduce(x)
    rank.vendor.synchronize(rank.device)
    wrong = [] if x.item() == rank.info.world_size else [f"all_reduce fp32: {x.item():g}, not {rank.info.world_size}"]
    rank.progress("leaving the group")
    dist.destroy_process_group()
    return {"wrong": wrong}
