"""The ranks that make the indices of a run together; this room knows no process groups."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from megads.data.samples.cache import Cache, unique
from megads.data.samples.recipe import Recipe
from megads.errors import DataError, MegadsError

T = TypeVar("T")
_APPEAR_S = 3.0  # in which a file that another host has written should show
_LONGEST = 500  # characters of a problem; thousands of ranks may send one


def _alone(value: Any) -> Any:
    """There is nobody to tell."""
    return value


@dataclass(frozen=True)
class Team:
    """Who builds which index, and how they tell each other."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # 0: first on its host, builds what its own file system lacks
    share: Callable[[Any], Any] = _alone  # returns rank 0's value, on every rank
    gather: Callable[[str], Sequence[str]] = lambda text: [text]  # returns the texts of all ranks, on every rank

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what ``make()`` returns on rank 0. Collective; an error there is raised on every rank."""
        value: tuple[T | None, MegadsError | None] = (None, None)
        if self.rank == 0:
            try:
                value = (make(), None)
            except MegadsError as error:
                value = (None, error)
        made, problem = self.share(value)
        if problem is not None:
            raise problem
        result: T = made
        return result

    def together(self, work: Callable[[], object]) -> None:
        """Do a part of the work. Collective; returns when all are done, and raises on every rank what one raised."""
        problem = ""
        try:
            work()
        except MegadsError as error:
            problem = str(error)[:_LONGEST] or type(error).__name__
        for text in self.gather(problem):
            if text:
                raise DataError(text)


def build_together(recipes: Sequence[Recipe], cache: Cache, team: Team) -> None:
    """Build what the cache lacks of ``recipes``; afterwards every rank finds all of them. Collective.

    Rank 0 says what is missing, the ranks share that out, and then the first rank of each
    host builds what does not show on its own file system. One listing of the folder tells it, so
    nothing is asked thousands of times; a rank that opens an index builds it if need be.

    Raises:
        DataError: on every rank, if one of them could not build.
    """
    distinct = unique(recipes, cache)
    missing = set(team.from_first(lambda: [i for i, each in enumerate(distinct) if not cache.has(each)]))
    if missing:
        order = sorted(missing)
        owners = share_out([distinct[i].cost for i in order], team.size)
        mine = [distinct[i] for i, rank in zip(order, owners, strict=True) if rank == team.rank]
        team.together(lambda: [cache.get(recipe) for recipe in mine])
    team.together(lambda: _complete(distinct, cache, team))


def _complete(recipes: Sequence[Recipe], cache: Cache, team: Team) -> None:
    """Build what this host's file system does not show."""
    if team.local_rank != 0:
        return
    until = time.monotonic() + _APPEAR_S
    while missing := cache.unlisted(recipes):
        if time.monotonic() > until:
            for recipe in missing:
                cache.get(recipe)
            return
        time.sleep(_APPEAR_S / 10)


def share_out(costs: Sequence[int], size: int) -> list[int]:
    """Return for each piece of work one of ``size`` ranks, so that none has much more to do than another."""
    load = [(0, rank) for rank in range(size)]
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        cost, rank = heapq.heappop(load)
        owners[i] = rank
        heapq.heappush(load, (cost + costs[i] + 1, rank))
    return owners
