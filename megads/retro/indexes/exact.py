"""Exact search in numpy: every query against every vector, in blocks, as faiss's Flat.

The distance of two float32 vectors is the sum of squared differences in float64, added up in one fixed way; equal
distances are ordered by id. A product of matrices in float32 finds the candidates, with a margin for its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from megads.retro.indexes.base import Ids, Rows

_QUERIES = 256  # at a time
_NUMBERS = 1 << 18  # of differences that are squared at a time: they stay in the cache of a core
Source = Callable[[], Iterable[tuple[int, Rows]]]
"""Gives the vectors in blocks: the id of the first one, and the vectors."""


class ExactIndex:
    """Vectors on disk, read once for every 256 queries; see :class:`Index`."""

    def __init__(self, source: Source):
        self._source = source

    def search(self, queries: Rows, count: int) -> Ids:
        """Return the ids of the ``count`` nearest of each query; see :class:`Index`."""
        found = [self._some(queries[start : start + _QUERIES], count) for start in range(0, len(queries), _QUERIES)]
        return np.concatenate(found) if found else np.empty((0, count), np.int64)

    def _some(self, queries: Rows, count: int) -> Ids:
        best = Best(len(queries), count)
        squares = (queries * queries).sum(axis=1, dtype=np.float32)
        for first, rows in self._source():
            lengths = (rows * rows).sum(axis=1, dtype=np.float32)
            near = squares[:, None] + lengths[None, :] - 2.0 * (queries @ rows.T)
            margin = rounding(queries.shape[1]) * (squares + lengths.max(initial=0.0))
            limit = best.limits
            if near.shape[1] > count:
                limit = np.minimum(limit, np.partition(near, count - 1, axis=1)[:, count - 1] + margin)
            which, place = np.nonzero(near <= (limit + margin)[:, None])
            best.add(which, place + first, distances(queries, rows, which, place))
        return best.ids


class Best:
    """The nearest of each query so far."""

    def __init__(self, queries: int, count: int):
        self.ids = np.full((queries, count), -1, np.int64)
        self._distances = np.full((queries, count), np.inf)

    @property
    def limits(self) -> npt.NDArray[np.float64]:
        """The largest distance that is kept of each query, infinite where there are fewer than asked for."""
        return self._distances[:, -1]

    def add(self, which: Ids, ids: Ids, found: npt.NDArray[np.float64]) -> None:
        """Consider vectors ``ids`` at distances ``found`` of queries ``which``, which are sorted."""
        queries, count = self.ids.shape
        starts = np.searchsorted(which, np.arange(queries + 1))
        for query in range(queries):
            mine = slice(starts[query], starts[query + 1])
            if mine.start == mine.stop:
                continue
            known = np.concatenate([self._distances[query], found[mine]])
            numbers = np.concatenate([self.ids[query], ids[mine]])
            order = np.lexsort((numbers, known))[:count]
            self._distances[query], self.ids[query] = known[order], numbers[order]


def rounding(dim: int) -> float:
    """Return the largest error of a float32 distance by products of ``dim`` numbers, relative to squared lengths."""
    return 2 * (dim + 4) * 2.0**-23


def distances(queries: Rows, rows: Rows, which: Ids, place: Ids) -> npt.NDArray[np.float64]:
    """Return the distance of query ``which[i]`` and row ``place[i]`` for each ``i``, float64."""
    out = np.empty(len(which))
    step = max(1, _NUMBERS // queries.shape[1])
    for start in range(0, len(which), step):
        part = slice(start, start + step)
        differences = queries[which[part]].astype(np.float64) - rows[place[part]]
        out[part] = (differences * differences).sum(axis=1)
    return out
