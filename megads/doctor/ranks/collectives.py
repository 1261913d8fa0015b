"""Every collective that training uses: with a known answer, and how fast it is by size.

Numbers are small integers, which every dtype holds exactly, and of a sum only one rank's
part is not zero at any place: so the answer does not depend on the order of adding, and a
wrong element shows whose part is wrong.

Algorithmic bandwidth is bytes over time; bus bandwidth multiplies it with what a perfect
algorithm has to send per byte, so that it can be held against the link's own speed for any number of ranks.
Bytes are those of the whole buffer (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megads.doctor.ranks.host_groups import neighbours

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
"""By the name a user knows; uint8 carries pickled objects."""

NOT_OFFERED = ("support", "Invalid scalar type")
"""In what a backend says of a collective or dtype that it does not have; every rank gets the same error."""

BASE = 127
LENGTH = 8
MOST_FOR_ALL_TO_ALL = 256
"""Ranks; training exchanges within small groups only, and every pair of ranks keeps a connection for it."""

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


@dataclass(frozen=True)
class Team:
    """A process group."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]  # global, ascending
    device: torch.device  # of this rank

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    @property
    def me(self) -> int:
        """Return this rank's index in the group."""
        return int(dist.get_rank(self.group))


def make_team(
    ranks: Sequence[int], device: torch.device, backend: str, timeout_s: float, *, world: bool = False
) -> Team:
    """Make the group of ``ranks``, which all of them must do, as many groups before it as the others.

    ``timeout_s`` is the longest wait in a collective; ``world`` takes the group of all ranks, which exists.
    """
    if world:
        assert dist.group.WORLD is not None
        return Team(dist.group.WORLD, tuple(ranks), device)
    group = dist.new_group(
        list(ranks), timeout=timedelta(seconds=timeout_s), backend=backend, use_local_synchronization=True
    )
    return Team(group, tuple(ranks), device)


def check_team(team: Team, note: Callable[[str], None]) -> dict[str, list[str]]:
    """Do every collective of every dtype in ``team``; ``note`` gets what comes next, for one that hangs.

    Returns:
        wrong: what gave a wrong answer, and where; lacks: what the backend does not offer.
    """
    wrong, lacks = [], []
    for name, check in CHECKS.items():
        if (team.size == 1 and name == "send/recv") or (team.size > MOST_FOR_ALL_TO_ALL and name == "all_to_all"):
            continue
        for dtype in DTYPES:
            note(f"{name} {dtype}")
            try:
                problem = check(team, DTYPES[dtype])
            except (RuntimeError, NotImplementedError) as error:
                if not any(sign in str(error) for sign in NOT_OFFERED):
                    raise
                lacks.append(f"{name} {dtype}")
                continue
            if problem:
                wrong.append(f"{name} {dtype}: {problem}")
    note("barrier")
    dist.barrier(group=team.group)
    return {"wrong": wrong, "lacks": lacks}


def _all_reduce(team: Team, dtype: torch.dtype) -> str:
    """Sum: at element j only rank j mod n gives something. Maximum: the last rank gives it."""
    length = max(3 * team.size, 64)
    index = torch.arange(length)
    value = index % 5 + 1
    x = torch.where(index % team.size == team.me, value, 0).to(team.device, dtype)
    dist.all_reduce(x, group=team.group)
    problem = _compare(team, x, value, lambda j: j % team.size)
    if problem:
        return problem
    x = torch.full((1,), team.me % BASE).to(team.device, dtype)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=team.group)
    return _compare(team, x, torch.tensor([min(team.size - 1, BASE - 1)]), lambda j: team.size - 1)


def _all_gather(team: Team, dtype: torch.dtype) -> str:
    x = _of_rank(team.me).to(team.device, dtype)
    out = x.new_zeros(team.size * LENGTH)
    dist.all_gather_into_tensor(out, x, group=team.group)
    expected = torch.cat([_of_rank(rank) for rank in range(team.size)])
    return _compare(team, out, expected, lambda j: j // LENGTH)


def _reduce_scatter(team: Team, dtype: torch.dtype) -> str:
    """Of the part for rank c only rank (c + k) mod n gives element k."""
    value = torch.arange(LENGTH) % 5 + 1
    giver = (torch.arange(team.size)[:, None] + torch.arange(LENGTH)) % team.size
    x = torch.where(giver == team.me, value, 0).flatten().to(team.device, dtype)
    out = x.new_zeros(LENGTH)
    dist.reduce_scatter_tensor(out, x, group=team.group)
    return _compare(team, out, value, lambda k: (team.me + k) % team.size)


def _broadcast(team: Team, dtype: torch.dtype) -> str:
    for root in dict.fromkeys((0, team.size - 1)):
        x = _of_rank(root if team.me == root else team.size).to(team.device, dtype)
        dist.broadcast(x, team.ranks[root], group=team.group)
        problem = _compare(team, x, _of_rank(root), lambda j, root=root: root)  # type: ignore[misc]
        if problem:
            return problem
    return ""


def _all_to_all(team: Team, dtype: torch.dtype) -> str:
    ranks = torch.arange(team.size)

    def letters(sender: Tensor, receiver: Tensor) -> Tensor:
        return torch.stack([sender % BASE, sender // BASE, receiver % BASE, receiver // BASE], dim=1).flatten()

    me = torch.full_like(ranks, team.me)
    x = letters(me, ranks).to(team.device, dtype)
    out = torch.zeros_like(x)
    dist.all_to_all_single(out, x, group=team.group)
    return _compare(team, out, letters(ranks, me), lambda j: j // 4)


def _send_recv(team: Team, dtype: torch.dtype) -> str:
    """Everybody sends to the next of the group and receives from the one before."""
    before, behind = (team.me - 1) % team.size, (team.me + 1) % team.size
    x, out = _of_rank(team.me).to(team.device, dtype), torch.zeros(LENGTH, dtype=dtype, device=team.device)
    swap(team, x, behind, out, before)
    return _compare(team, out, _of_rank(before), lambda j: before)


def swap(team: Team, x: Tensor, to: int, out: Tensor, origin: int) -> None:
    """Send ``x`` to and receive ``out`` from members of the group, given by their index."""
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, team.ranks[to], group=team.group),
            dist.P2POp(dist.irecv, out, team.ranks[origin], group=team.group),
        ]
    )
    for work in works:
        work.wait()


CHECKS: dict[str, Callable[[Team, torch.dtype], str]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send/recv": _send_recv,
}


def _of_rank(rank: int) -> Tensor:
    """Return ``[LENGTH]`` numbers below 127 that distinguish ranks, up to two million of them."""
    digits = [rank % BASE, rank // BASE % BASE, rank // BASE**2 % BASE]
    return torch.tensor([*digits, *((rank + 5 * j) % BASE for j in range(LENGTH - len(digits)))])


def _compare(team: Team, got: Tensor, expected: Tensor, owner: Callable[[int], int]) -> str:
    """Return where ``got`` is not ``expected`` first, and whose part that is; empty when it is the same."""
    found = got.cpu().to(torch.float64)
    bad = (found != expected.to(torch.float64)).nonzero().flatten().tolist()
    if not bad:
        return ""
    first = bad[0]
    return (
        f"element {first} is {found[first].item():g}, not {expected[first].item():g}: "
        f"the part of rank {team.ranks[owner(first)]}"
    )


def measure(
    team: Team, synchronize: Synchronize, note: Callable[[str], None], collectives: Sequence[str] = tuple(FACTORS)
) -> list[list[Any]]:
    """Return rows of (collective, bytes, seconds) of ``team``; its first rank gets them, the others nothing.

    The time of a call is that of the slowest rank, the best of some calls. ``team`` has two ranks or more;
    ``note`` gets what comes next.
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
    part = torch.ones(count // team.size, device=team.device)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=team.group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=team.group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=team.group),
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
            times = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                exchange(team, x, out, other)
                synchronize(team.device)
                times.append(time.perf_counter() - started)
            if team.me == first:
                rows.append([team.ranks[first], team.ranks[second], size / min(times)])
    return rows


def exchange(team: Team, x: torch.Tensor, out: torch.Tensor, other: int) -> None:
    """Send ``x`` to a member of the team and receive ``out`` from it."""
    swap(team, x, other, out, other)
