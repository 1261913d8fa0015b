"""Where ranks are, and the groups that follow from it: one host, pairs of hosts. Arithmetic; no torch."""

from __future__ import annotations

import socket
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from megads.cluster.hosts import this_host

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Place:
    """This rank's host and the groups it is in."""

    node: tuple[int, ...]  # the ranks of its host, ascending
    pairs: tuple[tuple[int, ...], ...]  # for every round, the ranks of its host and of one other; empty: it rests
    num_hosts: int  # of the whole check


def host_name(env: Mapping[str, str]) -> str:
    """Return this host's name: as SLURM knows it inside a step, else as the kernel does."""
    return (env.get("SLURMD_NODENAME", "") if env.get("SLURM_STEP_ID") else "") or this_host()


def address_of(name: str) -> str:
    """Return the first address that ``name`` resolves to here; empty where it has none."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return ""


def ranks_by_host(hosts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every host, hosts in the order of their first rank. ``hosts`` is by rank."""
    return {host: tuple(ranks) for host, ranks in ranks_by([host] for host in hosts).items()}


def ranks_by(values: Iterable[Iterable[Key]]) -> dict[Key, list[int]]:
    """Return the ranks that have each value, ascending. ``values`` has those of every rank, by rank."""
    found: dict[Key, list[int]] = {}
    for rank, each in enumerate(values):
        for value in each:
            found.setdefault(value, []).append(rank)
    return found


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
    of_host = {hosts[node[0]]: Place(node, tuple(rounds), len(nodes)) for node, rounds in zip(nodes, met, strict=True)}
    return [of_host[host] for host in hosts]
