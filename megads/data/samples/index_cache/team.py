"""The ranks that make the indices of a run together; this room knows no process groups."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from megads.data.samples.index_cache.cache import Cache, unique
from megads.data.samples.index_cache.progress import Pace
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
    """Who builds which index, and how they exchange."""

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

    What is there is read once, and built again if it is not what was written: the ranks that see rank 0's
    folder share the files out, so a cache of any size is read once in all. On a host with a folder of its own
    the first rank reads all of it.

    Raises:
        DataError: on every rank, if one of them could not build.
    """
    distinct = unique(recipes, cache)
    missing, mark = team.from_first(lambda: _look(distinct, cache, team))
    there = sorted(set(range(len(distinct))) - set(missing))
    try:
        mine = _to_verify(there, distinct, cache, team, mark)
        owners = share_out([distinct[i].cost for i in missing], team.size)
        build = [i for i, rank in zip(missing, owners, strict=True) if rank == team.rank]
        team.together(lambda: _work([distinct[i] for i in build], [distinct[i] for i in mine], cache, team))
    finally:
        if team.rank == 0:
            cache.unmark(mark)
    team.together(lambda: _complete(distinct, cache, team))


def _look(recipes: Sequence[Recipe], cache: Cache, team: Team) -> tuple[list[int], str]:
    """Return the numbers of the recipes without an index, and a mark in the folder if there is anything to read."""
    missing = [i for i, each in enumerate(recipes) if not cache.has(each)]
    return missing, cache.mark() if team.size > 1 and len(missing) < len(recipes) else ""


def _to_verify(there: Sequence[int], recipes: Sequence[Recipe], cache: Cache, team: Team, mark: str) -> Sequence[int]:
    """Return the numbers of the recipes whose indices this rank reads. Collective."""
    if not there or team.size == 1:
        return there
    sees = cache.sees(mark) or team.rank == 0
    ranks = [rank for rank, word in enumerate(team.gather("1" if sees else "")) if word]
    if not sees:
        return there if team.local_rank == 0 else ()
    owners = share_out([recipes[i].nbytes for i in there], len(ranks))
    return [i for i, owner in zip(there, owners, strict=True) if ranks[owner] == team.rank]


def _work(missing: Sequence[Recipe], there: Sequence[Recipe], cache: Cache, team: Team) -> None:
    """Read what is there, build what is missing or damaged; rank 0 reports how far its share is."""
    total = sum(recipe.nbytes for recipe in (*missing, *there))
    what = (
        f"{len(missing)} to build, {len(there)} to verify on this rank"
        if team.size > 1
        else (f"{len(missing)} to build, {len(there)} to verify")
    )
    with Pace(f"sample indices ({what})", total, team.rank == 0) as pace:
        damaged = [recipe for recipe in there if not cache.verify(recipe, pace.step)]
        for recipe in (*damaged, *missing):
            cache.get(recipe, pace.step)


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
