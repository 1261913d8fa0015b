"""``query/``: the neighbours of every chunk of a run's samples, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from megads.data.retro.blocks import Block, Shapes, blocks_of, missing_blocks, write_arrays
from megads.data.retro.build import remove_leftovers
from megads.data.retro.crew import Crew, Tick
from megads.data.retro.project import SPLITS, Project
from megads.data.retro.samples import Queries, QuerySamples, text_of
from megads.errors import DataError
from megads.retro.embedders.base import Embedder
from megads.retro.index import open_index
from megads.retro.indexes.base import Ids, Index

_AT_ONCE = 1000  # chunks that are searched for at a time, as upstream


class Searcher:
    """Finds neighbours of chunks of samples; index and embedder are loaded when the first block needs them."""

    def __init__(self, project: Project, embedder: Callable[[], Embedder]):
        self._project, self._embedder = project, embedder
        self.queries = Queries(project)

    @cached_property
    def _index(self) -> Index:
        return open_index(self._project, self._embedder().dim)

    @cached_property
    def _documents(self) -> npt.NDArray[np.uint64]:
        """Data set and document of every chunk that can be retrieved, in one number."""
        found = self._project.database().documents().astype(np.uint64)
        return (found[:, 0] << np.uint64(32)) | found[:, 1]

    def blocks(self, split: str) -> list[Block]:
        """Return the blocks of a split's neighbours, there or not."""
        samples, name = self.queries.splits[split], self._project.config.neighbor_dirs.get(split)
        if samples is None or not name:
            return []
        return blocks_of(self._project.folder / "query" / name, samples.num_chunks, self._project.config.block_size)

    def shapes(self, block: Block) -> Shapes:
        """Return the shape of a block of neighbours."""
        return {"neighbors": (len(block), self._project.config.own["num_neighbors"])}

    def find(self, split: str, block: Block, tick: Tick) -> Ids:
        """Return the neighbours of a block of chunks, int64 [chunks, kept].

        Of the nearest chunks those of a document that the chunk's sample has tokens of are dropped; what is missing
        then is -1.
        """
        samples, own = self.queries.splits[split], self._project.config.own
        if samples is None:
            raise DataError(f"no samples of split {split!r}")
        out = []
        for start in range(block.start, block.stop, _AT_ONCE):
            stop = min(start + _AT_ONCE, block.stop)
            texts = [text_of(tokens, self._project) for tokens in samples.chunks(start, stop)]
            rows = self._embedder().embed(texts, lambda texts: tick(0))
            near = self._index.search(rows, own["num_neighbors_query"])
            out.append(self._without_own(near, samples, start, own["num_neighbors"]))
            tick(stop - start)
        return np.concatenate(out)

    def nearest(self, chunks: Sequence[Sequence[int]], count: int) -> Ids:
        """Return the ``count`` nearest chunks of rows of tokens, of all documents, int64 [rows, count]; -1: none."""
        texts = [text_of(tokens, self._project) for tokens in chunks]
        return self._index.search(self._embedder().embed(texts), count)

    def _without_own(self, near: Ids, samples: QuerySamples, first: int, kept: int) -> Ids:
        out = np.full((len(near), kept), -1, np.int64)
        count = self._project.chunks_per_sample
        sample, banned = -1, np.empty(0, np.uint64)
        for row, ids in enumerate(near):
            if (first + row) // count != sample:
                sample = (first + row) // count
                file, documents = samples.documents(first + row)
                banned = np.uint64(file << 32) | documents.astype(np.uint64)
            found = ids[ids >= 0]
            found = found[~np.isin(self._documents[found], banned)][:kept]
            out[row, : len(found)] = found
        return out


def query(project: Project, crew: Crew, embedder: Callable[[], Embedder]) -> dict[str, int]:
    """Find the neighbours of all splits that are missing or damaged; return the chunks of each. Collective.

    Raises:
        MegadsError: the index is not complete, or a split has too little data.
    """
    searcher, rows = Searcher(project, embedder), {}
    # Sample indices are built once, by rank 0; the others read them.
    crew.agree(lambda: len(searcher.queries.splits))
    for split in SPLITS:
        blocks = searcher.blocks(split)
        rows[split] = blocks[-1].stop if blocks else 0
        if not blocks:
            continue

        def find(blocks: list[Block] = blocks) -> list[Block]:
            remove_leftovers(blocks[0].path.parent)
            wanted, notes = missing_blocks(blocks, searcher.shapes)
            for note in notes:
                crew.report(note)
            return wanted

        def make(block: Block, tick: Tick, split: str = split) -> None:
            write_arrays(block.path, {"neighbors": searcher.find(split, block, tick)})

        crew.stage(f"neighbours of {split}", find, make, "chunks")
    return rows


def nearest(project: Project, embedder: Callable[[], Embedder]) -> Callable[[Sequence[Sequence[int]], int], Ids]:
    """Return a function of rows of tokens and a count that returns the nearest chunks, int64 [rows, count]."""
    return Searcher(project, embedder).nearest
