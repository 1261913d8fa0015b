"""How fast collectives are, by size: algorithmic and bus bandwidth, the slowest rank's time.

Algorithmic bandwidth is bytes over time; bus bandwidth multiplies it with what a perfect
algorithm has to send per byte, so that it can be held against the link's own speed for any number of ranks
. Bytes are those of the whole buffer (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from megads.doctor.ranks.collectives import Team, swap
from megads.doctor.ranks.host_groups import neighbours

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
"""Collective -> bus over algorithmic bandwidth, by ranks."""

SIZES = {"cpu": (2**14, 2**18, 2**22), "": (2**20, 2**24, 2**28)}
"""Bytes by device type."""

REPEATS = 5
ENOUGH_S = 2.0
"""A size that has taken so long is not measured again."""

Synchronize = Callable[[torch.device], None]


def measure(
    team: Team, synchronize: Synchronize, note: Callable[[str], None], collectives: Sequence[str] = tuple(FACTORS)
) -> list[list[Any]]:
    """Return rows of (collective, bytes, seconds) of ``team``; its first rank gets them, the others nothing.

    The time of a call is that of the slowest rank, the best of some calls.

    Args:
        team: two ranks or more.
        synchronize: waits for a device.
        note: told what comes next.
        collectives: of :data:`FACTORS`.
    """
    rows = []
    for name in collectives:
        for size in SIZES.get(team.device.type, SIZES[""]):
            note(f"{name} of {size} bytes")
            count = max(1, size // 4 // team.size) * team.size
            call = _call(name, team, count)
            rows.append([name, 4 * count, best_time(team, synchronize, call)])
    return rows if team.me == 0 else []


def best_time(team: Team, synchronize: Synchronize, call: Callable[[], None]) -> float:
    """Return the seconds of the best of some calls on the slowest rank; the same on every rank of the team."""
    call()
    best, spent = float("inf"), 0.0
    for _ in range(REPEATS):
        dist.barrier(group=team.group)
        synchronize(team.device)
        started = time.perf_counter()
        call()
        synchronize(team.device)
        slowest = torch.tensor([time.perf_counter() - started], dtype=torch.float32, device=team.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=team.group)
        best, spent = min(best, slowest.item()), spent + slowest.item()
        if spent > ENOUGH_S:
            break
    return best


def _call(name: str, team: Team, count: int) -> Callable[[], None]:
    whole = torch.ones(count, device=team.device)
    piece = torch.ones(count // team.size, device=team.device)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=team.group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, piece, group=team.group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole, group=team.group),
        "broadcast": lambda: dist.broadcast(whole, team.ranks[0], group=team.group),
    }
    call = calls[name]

    def once() -> None:
        # A sum that grows forever would end in infinities, which some processors add slowly.
        whole.zero_()
        call()

    return once


def measure_pairs(team: Team, synchronize: Synchronize, note: Callable[[str], None]) -> list[list[float]]:
    """Return rows of (global rank, other global rank, bytes a second) of neighbours in the team's ring.

    Both send and receive the largest size at once; of a pair the first of the two gets the row.
    """
    size = SIZES.get(team.device.type, SIZES[""])[-1]
    x = torch.zeros(size // 4, device=team.device)
    out = torch.zeros_like(x)
    rows = []
    for number, pairs in enumerate(neighbours(team.size)):
        note(f"send/recv of neighbours, round {number + 1}")
        dist.barrier(group=team.group)
        for first, second in pairs:
            if team.me not in (first, second):
                continue
            other = second if team.me == first else first
            best = float("inf")
            for _ in range(REPEATS):
                started = time.perf_counter()
                exchange(team, x, out, other)
                synchronize(team.device)
                best = min(best, time.perf_counter() - started)
            if team.me == first:
                rows.append([team.ranks[first], team.ranks[second], size / best])
    return rows


def exchange(team: Team, x: torch.Tensor, out: torch.Tensor, other: int) -> None:
    """Send ``x`` to a member of the team and receive ``out`` from it."""
    swap(team, x, other, out, other)
