"""Where ranks are, and the groups that follow from it: one host, pairs of hosts. Arithmetic; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megads.cluster.hosts import this_host


@dataclass(frozen=True)
class Place:
    """This rank's host and the groups it is in.

    Attributes:
        node: the ranks of its host, ascending.
        pairs: for every round, the ranks of its host and of one other; empty where the host rests.
        num_hosts: of the whole check.
    """

    node: tuple[int, ...]
    pairs: tuple[tuple[int, ...], ...]
    num_hosts: int


def host_name(env: Mapping[str, str]) -> str:
    """Return this host's name: as SLURM knows it inside a step, else as the kernel does."""
    return (env.get("SLURMD_NODENAME", "") if env.get("SLURM_STEP_ID") else "") or this_host()


def ranks_by_host(hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every host, hosts in the order of their first rank. ``hosts`` is by rank."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return {host: tuple(ranks) for host, ranks in found.items()}


def neighbours(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs in which each of ``count`` meets the one before and the one behind, around a ring.

    In a round everybody is in at most one pair. There are as many pairs as members, so that
    this scales, and a slow member shows in both of its pairs where a slow link shows in one.
    """
    if count < 2:
        return []
    rounds = [[(i, i + 1) for i in range(first, count - 1, 2)] for first in (0, 1)]
    if count > 2 and count % 2 == 0:
        rounds[1].append((count - 1, 0))
    elif count > 2:
        rounds.append([(count - 1, 0)])
    return [pairs for pairs in rounds if pairs]


def places(hosts: Sequence[str]) -> list[Place]:
    """Return the place of every rank. ``hosts`` is by rank."""
    nodes = list(ranks_by_host(hosts).values())
    met: list[list[tuple[int, ...]]] = [[] for _ in nodes]
    for pairs in neighbours(len(nodes)):
        both = {index: tuple(sorted(nodes[a] + nodes[b])) for a, b in pairs for index in (a, b)}
        for index, rounds in enumerate(met):
            rounds.append(both.get(index, ()))
    result: list[Place | None] = [None] * len(hosts)
    for index, node in enumerate(nodes):
        place = Place(node, tuple(met[index]), len(nodes))
        for rank in node:
            result[rank] = place
    return [place for place in result if place is not None]
