"""Collectives of the groups of a run: first whether they are right, then their rate by size.

Bytes and bus bandwidth are those of nccl-tests (PERFORMANCE.md): the whole buffer of a rank, and algorithmic bandwidth
times what a perfect algorithm has to send per byte, so that it can be compared with the speed of a link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from megads.bench.results import PartResult
from megads.bench.session import Bench, MeasurementFailed
from megads.comm.messages import all_gather_values
from megads.doctor.ranks.collectives import FACTORS, MOST_FOR_ALL_TO_ALL, Team, best_time, check_team, make_team, swap
from megads.doctor.ranks.host_groups import ranks_by_host
from megads.text.plural import plural

BUS: dict[str, Callable[[int], float]] = {
    **{name: FACTORS[name] for name in ("all_reduce", "all_gather", "reduce_scatter")},
    "all_to_all": lambda n: (n - 1) / n,
    "send/recv": lambda n: 1.0,
}
"""Collective -> bus over algorithmic bandwidth, by ranks."""

SIZES = {"tiny": (2**12, 2**16), "cpu": (2**14, 2**18, 2**22), "device": (2**12, 2**16, 2**20, 2**24, 2**28)}

LIMIT_S = 60.0
"""Longest wait in a collective."""


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for every kind of group, collective and size: that of the slowest group. Collective."""
    if bench.world_size == 1:
        result.status = "skipped"
        result.notes.append("one rank; start several, e.g. megads bench -n 4")
        return
    teams = {name: _team(bench, rows) for name, rows in kinds_of_groups(bench.hosts).items()}
    for name, team in teams.items():
        bench.notify(f"checking collectives of {name}")
        for found in all_gather_values(check_team(team, lambda text: None)):
            result.wrong += [f"{name}: {line}" for line in found["wrong"] if f"{name}: {line}" not in result.wrong]
    if result.wrong:
        return
    sizes = SIZES["tiny" if bench.is_tiny else "cpu" if bench.is_cpu else "device"]
    dropped = 0
    for size in sizes:  # all collectives of a size before the next: what is dropped are the largest
        for name, team in teams.items():
            for collective in BUS:
                if not bench.goes_on():
                    dropped += 1
                    continue
                _add_row(bench, result, name, team, collective, size)
    if dropped:
        result.status = "partial"
        result.notes.append(f"{plural(dropped, 'row')} dropped: no time left")


def kinds_of_groups(hosts: tuple[str, ...]) -> dict[str, list[tuple[int, ...]]]:
    """Return name -> groups of ranks, of which each rank is in one: as tensor- and data-parallel groups lie.

    Args:
        hosts: of every rank.
    """
    by_host = list(ranks_by_host(hosts).values())
    world = tuple(range(len(hosts)))
    found: dict[str, list[tuple[int, ...]]] = {"all ranks": [world]}
    each = {len(ranks) for ranks in by_host}
    if len(by_host) > 1 and each != {1}:
        found["host"] = list(by_host)
        if len(each) == 1:
            found["across hosts"] = list(zip(*by_host, strict=True))
    if all(len(ranks) > 2 and len(ranks) % 2 == 0 for ranks in by_host):
        found["pairs of a host"] = [ranks[n : n + 2] for ranks in by_host for n in range(0, len(ranks), 2)]
    return found


def _team(bench: Bench, groups: list[tuple[int, ...]]) -> Team:
    ranks = next(ranks for ranks in groups if bench.groups.rank in ranks)
    world = len(ranks) == bench.world_size
    return make_team(ranks, bench.device, bench.vendor.backend, LIMIT_S, world=world)


def _add_row(bench: Bench, result: PartResult, name: str, team: Team, collective: str, size: int) -> None:
    if collective == "all_to_all" and team.size > MOST_FOR_ALL_TO_ALL:
        return
    bench.notify(f"{collective} of {name}, {size} bytes")
    count = max(1, size // 4 // team.size) * team.size
    try:
        seconds = bench.on_all(lambda: best_time(team, bench.vendor.synchronize, _call(collective, team, count)))
    except MeasurementFailed as problem:
        line = f"{collective} of {name}: {problem}"
        if line not in result.notes:
            result.notes.append(line)
        return
    slowest, num_bytes = max(seconds), 4 * count
    result.rows.append(
        {
            "collective": collective,
            "group": name,
            "ranks": team.size,
            "bytes": num_bytes,
            "us": 1e6 * slowest,
            "gb_per_s": num_bytes / slowest / 1e9,
            "bus_gb_per_s": num_bytes / slowest / 1e9 * BUS[collective](team.size),
        }
    )


def _call(collective: str, team: Team, count: int) -> Callable[[], None]:
    whole, other = (torch.zeros(count, device=team.device) for _ in range(2))
    part = torch.zeros(count // team.size, device=team.device)
    before, behind = (team.me - 1) % team.size, (team.me + 1) % team.size
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=team.group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=team.group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=team.group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=team.group),
        "send/recv": lambda: swap(team, whole, behind, other, before),
    }
    return calls[collective]
