"""The names of all ranks' hosts, without a collective: who needs one asks the store that the ranks met in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import torch.distributed as dist

from megads.cluster.hosts import this_host
from megads.comm.rendezvous import host_identity, read_numbers

KNOWN_TO_ALL = 256
"""Up to so many ranks every rank knows all names from the start; beyond, only rank 0 does."""


class RankHosts(Sequence[str]):
    """The name of every rank's host, by rank.

    Args:
        store: that the ranks met in; None: a rank by itself.
        rank: this one.
        world_size: number of ranks.
    """

    def __init__(self, store: dist.Store | None, rank: int, world_size: int):
        self._store, self._size = store, world_size
        self._known = {rank: this_host()}
        if rank == 0 or world_size <= KNOWN_TO_ALL:
            self._load()

    @property
    def known(self) -> dict[int, str]:
        """The names that are known without asking, by rank."""
        return dict(self._known)

    def _load(self) -> None:
        """Ask for all names that are missing, many at a time."""
        missing = [rank for rank in range(self._size) if rank not in self._known]
        if missing and self._store is not None:
            self._known |= dict(read_numbers(self._store, "host", missing))

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[rank] for rank in range(*index.indices(self._size))]
        rank = range(self._size)[index]
        if rank not in self._known:
            self._known |= dict(read_numbers(self._store, "host", [rank])) if self._store is not None else {}
        return self._known.get(rank, "")

    def __iter__(self) -> Iterator[str]:
        self._load()
        return (self._known.get(rank, "") for rank in range(self._size))


def known_hosts(hosts: Sequence[str]) -> dict[int, str]:
    """Return the names that ``hosts`` has, by rank, without asking the store, which may be gone."""
    return hosts.known if isinstance(hosts, RankHosts) else dict(enumerate(hosts))


def is_first_here(store: dist.Store) -> bool:
    """Return whether this is the first of its host's ranks to ask; each asks once."""
    return store.add(f"on/{host_identity()}", 1) == 1
