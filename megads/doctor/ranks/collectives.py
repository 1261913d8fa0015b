"""Every collective that training uses, with a known answer.

Numbers are small integers, which every dtype holds exactly, and of a sum only one rank's
part is not zero at any place: so the answer does not depend on the order of adding, and a
wrong element tells whose part is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
"""By the name a user knows; uint8 carries pickled objects."""

NOT_OFFERED = ("support", "Invalid scalar type")
"""In what a backend says of a collective or dtype that it does not have; every rank hears the same."""

BASE = 127
LENGTH = 8
MOST_FOR_ALL_TO_ALL = 256
"""Ranks; training exchanges within small groups only, and every pair of ranks keeps a connection for it."""


@dataclass(frozen=True)
class Team:
    """A process group, the global ranks in it, and the device of this rank."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    device: torch.device

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

    Args:
        ranks: global, ascending; with this one.
        device: of this rank.
        backend: of the group.
        timeout_s: longest wait in a collective.
        world: use the group of all ranks, which exists.
    """
    if world:
        assert dist.group.WORLD is not None
        return Team(dist.group.WORLD, tuple(ranks), device)
    group = dist.new_group(
        list(ranks), timeout=timedelta(seconds=timeout_s), backend=backend, use_local_synchronization=True
    )
    return Team(group, tuple(ranks), device)


def check_team(team: Team, note: Callable[[str], None]) -> dict[str, list[str]]:
    """Do every collective of every dtype in ``team``.

    Args:
        team: the group.
        note: told what comes next, for one that hangs.

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
    """Of the piece for rank c only rank (c + k) mod n gives element k."""
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
    """Everybody sends to the next of the group and hears from the one before."""
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
    """Return ``[LENGTH]`` numbers below 127 that tell ranks apart, up to two million of them."""
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
