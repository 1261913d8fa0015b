"""Build indices: with the ranks of a run together, or with all cores of this host. No process groups here."""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

from megads.cluster.parent import end_with
from megads.data.samples.index_cache.cache import Cache, unique
from megads.data.samples.recipe import Recipe
from megads.errors import DataError, MegadsError

T = TypeVar("T")
FIRST_S, EVERY_S = 5.0, 30.0
"""Until the first line about progress, and between two of them."""

_APPEAR_S = 3.0  # in which a file that another host has written should show
_LONGEST = 500  # characters of a problem; thousands of ranks may send one
_LOG = logging.getLogger("megads")


@dataclass(frozen=True)
class Team:
    """Who builds which index, and how they exchange."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # 0: one of its host, builds what its own file system lacks
    share: Callable[[Any], Any] = lambda value: value  # returns rank 0's value, on every rank
    gather: Callable[[str], Sequence[str]] = lambda text: [text]  # returns the texts of all ranks, on every rank
    first: Callable[[str], str] | None = None  # returns the text of the first rank that has one, on every rank

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
        if text := self.first_text(problem):
            raise DataError(text)

    def first_text(self, text: str) -> str:
        """Return the text of the first rank that has one, on every rank; empty: none has. Collective."""
        return self.first(text) if self.first else next(filter(None, self.gather(text)), "")


def build_together(recipes: Sequence[Recipe], cache: Cache, team: Team) -> None:
    """Build what the cache lacks of ``recipes``; afterwards every rank finds all of them. Collective.

    Rank 0 says what is missing, the ranks share that out, and then the first rank of each
    host builds what does not show on its own file system. One listing of the folder shows it, so
    nothing is asked thousands of times; a rank that opens an index builds it if need be.

    What is there is read once, and built again if it is not what was written: the ranks that see rank 0's
    folder share the files out, so a cache of any size is read once in all. On a host with a folder of its own
    the first rank reads all of it.

    Raises:
        DataError: on every rank, if one of them could not build.
    """
    distinct = unique(recipes, cache)
    missing, mark = team.from_first(lambda: _find_missing(distinct, cache, team))
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


def _find_missing(recipes: Sequence[Recipe], cache: Cache, team: Team) -> tuple[list[int], str]:
    """Return the numbers of the recipes without an index, and a mark in the folder if there is anything to read."""
    missing = [i for i, each in enumerate(recipes) if cache.find(each) is None]
    return missing, cache.mark() if team.size > 1 and len(missing) < len(recipes) else ""


def _to_verify(there: Sequence[int], recipes: Sequence[Recipe], cache: Cache, team: Team, mark: str) -> Sequence[int]:
    """Return the numbers of the recipes whose indices this rank reads. Collective."""
    if not there or team.size == 1:
        return there
    sees = cache.sees(mark) or team.rank == 0
    if not team.first_text("" if sees else "1"):  # the folder is shared by all
        owners = share_out([recipes[i].nbytes for i in there], team.size)
        return [i for i, owner in zip(there, owners, strict=True) if owner == team.rank]
    ranks = [rank for rank, word in enumerate(team.gather("1" if sees else "")) if word]
    if not sees:
        return there if team.local_rank == 0 else ()
    owners = share_out([recipes[i].nbytes for i in there], len(ranks))
    return [i for i, owner in zip(there, owners, strict=True) if ranks[owner] == team.rank]


def _work(missing: Sequence[Recipe], there: Sequence[Recipe], cache: Cache, team: Team) -> None:
    """Read what is there, build what is missing or damaged; rank 0 reports how far its share is."""
    total = sum(recipe.nbytes for recipe in (*missing, *there))
    what = f"{len(missing)} to build, {len(there)} to verify{' on this rank' if team.size > 1 else ''}"
    with Progress(f"sample indices ({what})", total, team.rank == 0) as progress:
        damaged = [recipe for recipe in there if not cache.verify(recipe, progress.step)]
        for recipe in (*damaged, *missing):
            cache.get(recipe, progress.step)


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


class Progress:
    """A line in the log now and then while a ``with`` block works: share done, time passed, ETA."""

    def __init__(self, what: str, total: int, is_shown: bool = True):
        self.what, self.total, self.done = what, total, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True) if is_shown and total else None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def step(self, size: int) -> None:
        """Add to what is done."""
        self.done += size

    def _report(self) -> None:
        pause = FIRST_S
        while not self._over.wait(pause):
            passed, share = time.monotonic() - self._began, min(1.0, self.done / self.total)
            eta = f", ETA {passed / share - passed:.0f} s" if 0.02 < share < 1 else ""
            _LOG.info("%s: %.0f %%, %.0f s%s", self.what, 100 * share, passed, eta)
            pause = EVERY_S


@dataclass(frozen=True)
class Built:
    """One index that was built."""

    recipe: Recipe
    nbytes: int
    seconds: float


def not_verified(recipes: Sequence[Recipe], cache: Cache, workers: int) -> list[Recipe]:
    """Return those whose index is missing or not what was written; all that are there are read.

    Raises:
        DataError: a damaged one cannot be removed.
    """
    # Checksums are made without the interpreter's lock.
    with ThreadPoolExecutor(workers) as pool:
        return [recipe for recipe, good in zip(recipes, pool.map(cache.verify, recipes), strict=True) if not good]


def build_in_pool(recipes: Sequence[Recipe], cache: Cache, workers: int) -> Iterator[Built]:
    """Build ``recipes``, the largest first, and yield each when it is done.

    Raises:
        DataError: one could not be built; the others are not begun any more.
    """
    order = sorted(recipes, key=lambda recipe: -recipe.cost)
    if workers == 1 or len(order) < 2:
        yield from (_build(cache, recipe) for recipe in order)
        return
    # late: a dry run needs none of it
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

    # spawn: the caller may draw a progress bar, in a thread that a fork would not survive.
    context = multiprocessing.get_context("spawn")
    number = min(workers, len(order))
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=end_with, initargs=(os.getpid(),))
    try:
        for future in as_completed([pool.submit(_build, cache, recipe) for recipe in order]):
            yield future.result()
    except BrokenProcessPool:
        raise DataError(
            "a process that built sample indices was killed; if memory ran out, use fewer at a time: --workers 1"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _build(cache: Cache, recipe: Recipe) -> Built:
    started = time.perf_counter()
    columns = cache.get(recipe)
    return Built(recipe, sum(column.nbytes for column in columns.values()), time.perf_counter() - started)
