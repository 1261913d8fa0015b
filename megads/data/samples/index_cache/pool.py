"""Build many indices with all cores of this host."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from megads.cluster.parent import end_with
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.recipe import Recipe
from megads.errors import DataError


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
    arrays = cache.get(recipe)
    return Built(recipe, sum(array.nbytes for array in arrays.values()), time.perf_counter() - started)
