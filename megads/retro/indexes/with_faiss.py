"""Indexes of faiss, by their string: Flat, IVF65536_HNSW8,PQ32, OPQ32_64,IVF65536_HNSW8,PQ32 and others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.errors import ConfigError, DependencyError
from megads.retro.indexes.base import Ids, Rows
from megads.retro.indexes.exact import Best, distances, rounding

_MARGIN = 32
"""Candidates beyond those asked for, whose exact distances decide the order of a Flat index."""


def load_faiss() -> Any:
    """Return the module faiss.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise DependencyError(
            "this index needs faiss; pip install -e '.[retro]' in the checkout, or pass --retro-index-type exact"
        ) from None
    return faiss


def make_index(string: str, dim: int) -> Any:
    """Return an untrained index.

    Raises:
        ConfigError: faiss does not understand the string.
    """
    faiss = load_faiss()
    try:
        return faiss.index_factory(dim, string)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).rpartition(": ")[2].strip() or type(error).__name__
        raise ConfigError(
            f"--retro-index-str {string}: faiss does not understand it for {dim} numbers ({reason[:120]})"
        ) from None


def train_index(string: str, dim: int, rows: Rows) -> Any:
    """Return an index trained on ``rows``.

    Raises:
        ConfigError: there are too few rows for it, or the string is wrong.
    """
    index = make_index(string, dim)
    if index.is_trained:
        return index
    try:
        index.train(rows)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2].strip()
        raise ConfigError(
            f"--retro-index-str {string}: cannot be trained on {len(rows)} vectors ({reason[:160]}); raise "
            "--retro-index-ntrain, or use a smaller index"
        ) from None
    return index


def inverted_lists(index: Any) -> Any:
    """Return the part of an index with inverted lists, None if it has none."""
    return load_faiss().try_extract_index_ivf(index)


def encode(index: Any, rows: Rows) -> npt.NDArray[Any]:
    """Return what is stored of vectors: codes where an index has inverted lists, else the vectors."""
    if inverted_lists(index) is None:
        return rows
    found: npt.NDArray[Any] = index.sa_encode(rows)
    return found


def code_columns(index: Any, dim: int) -> int:
    """Return the columns of :func:`encode`."""
    return dim if inverted_lists(index) is None else int(index.sa_code_size())


def add_rows(index: Any, blocks: Iterable[tuple[int, npt.NDArray[Any]]]) -> None:
    """Add what :func:`encode` made, in blocks with the id of their first row.

    Raises:
        ConfigError: ids have gaps, which an index without inverted lists cannot hold.
    """
    faiss, lists = load_faiss(), inverted_lists(index)
    threads = faiss.omp_get_max_threads()
    if lists is None and not isinstance(faiss.downcast_index(index), faiss.IndexFlat):
        faiss.omp_set_num_threads(1)  # several threads make other graphs every time
    for first, rows in blocks:
        if lists is not None:
            lists.add_sa_codes(np.ascontiguousarray(rows), np.arange(first, first + len(rows)))
            continue
        if first != index.ntotal:
            raise ConfigError("--retro-index-add-load-fraction below 1 needs an index with inverted lists (IVF)")
        index.add(np.ascontiguousarray(rows, dtype=np.float32))
    faiss.omp_set_num_threads(threads)
    if lists is not None:
        index.ntotal = lists.ntotal


class FaissIndex:
    """A filled index; see :class:`Index`. Distances of an index that is not Flat are those of its codes."""

    def __init__(self, index: Any, nprobe: int, ef_search: int):
        faiss = load_faiss()
        self._index = index
        self._is_flat = isinstance(faiss.downcast_index(index), faiss.IndexFlat)
        lists = inverted_lists(index)
        graphs = [faiss.downcast_index(index)]
        if lists is not None:
            lists.nprobe = min(nprobe, lists.nlist)
            graphs.append(faiss.downcast_index(lists.quantizer))
        for graph in graphs:
            if hasattr(graph, "hnsw"):
                graph.hnsw.efSearch = ef_search

    @staticmethod
    def read(path: Path, nprobe: int, ef_search: int) -> FaissIndex:
        """Read an index from a file."""
        return FaissIndex(load_faiss().read_index(str(path)), nprobe, ef_search)

    def search(self, queries: Rows, count: int) -> Ids:
        """Return the ids of the ``count`` nearest of each query; see :class:`Index`."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        if self._is_flat:
            return self._exact(queries, count)
        found, ids = self._index.search(queries, count)
        found = np.where(ids < 0, np.inf, found)
        order = np.lexsort((ids, found), axis=1)
        return np.take_along_axis(ids, order, axis=1).astype(np.int64)

    def _exact(self, queries: Rows, count: int) -> Ids:
        """Order faiss's candidates by exact distance and id; take more where equal ones may be missing."""
        total = int(self._index.ntotal)
        rows = (
            load_faiss()
            .rev_swig_ptr(load_faiss().downcast_index(self._index).get_xb(), total * self._index.d)
            .reshape(total, -1)
        )
        longest = np.einsum("ij,ij->i", rows, rows).max(initial=0.0)
        error = rounding(self._index.d) * (np.einsum("ij,ij->i", queries, queries) + longest)
        out = np.full((len(queries), count), -1, np.int64)
        todo, width = np.arange(len(queries)), count + _MARGIN
        while len(todo):
            near, ids = self._index.search(queries[todo], min(width, total))
            which = np.repeat(np.arange(len(todo)), ids.shape[1])
            best = Best(len(todo), count)
            best.add(which, ids.ravel(), distances(queries[todo], rows, which, ids.ravel()))
            out[todo] = best.ids
            # What is not among the candidates is as far as the last one at least, but for faiss's rounding.
            unsure = near[:, -1] - error[todo] <= best.limits
            todo = todo[unsure] if width < total else todo[:0]
            width *= 2
        return out
