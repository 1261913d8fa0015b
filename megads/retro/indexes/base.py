"""What the steps need of an index; the paths of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megads.data.retro.blocks import Block, Shapes, Table, blocks_of
from megads.data.retro.project import Project

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Index(Protocol):
    """Vectors to the ids of their nearest ones."""

    def search(self, queries: Rows, count: int) -> Ids:
        """Return the ``count`` nearest of each query, nearest first, equal ones by id; -1 where there are not so many.

        int64 [queries, count]; the distance is the sum of squared differences.
        """


@dataclass(frozen=True)
class Places:
    """Where the files of an index are, as Megatron-core has them.

    Attributes:
        folder: ``index/<type>/<string>``.
        empty: the trained index, without vectors.
        added: the index.
        codes: folder of what is added, in blocks: vectors, or what the index makes of them.
        training: folder of the vectors that the index is trained on, in blocks.
    """

    folder: Path
    empty: Path
    added: Path
    codes: Path
    training: Path

    @staticmethod
    def of(project: Project) -> Places:
        """Return those of a project."""
        own = project.config.own
        folder = project.folder / "index" / own["index_type"] / own["index_str"]
        train, add = own["train_load_fraction"], own["add_load_fraction"]
        return Places(
            folder,
            folder / f"empty_{train:.3f}.faissindex",
            folder / f"added_{train:.3f}_{add:.3f}.faissindex",
            folder / "add_codes",
            project.folder / "index" / "train_emb" / "blocks",
        )


def is_exact(project: Project) -> bool:
    """Return whether the project searches with numpy."""
    return bool(project.config.own["index_type"] == "exact")


def code_blocks(project: Project) -> list[Block]:
    """Return the blocks of what is added to the index: a row for each chunk that can be retrieved."""
    return blocks_of(Places.of(project).codes, len(project.database()), project.config.block_size)


def training_blocks(project: Project) -> list[Block]:
    """Return the blocks of vectors that the index is trained on."""
    return blocks_of(Places.of(project).training, len(project.database("sampled")), project.config.block_size)


def vector_shapes(dim: int) -> Callable[[Block], Shapes]:
    """Return what gives the shapes of a block of vectors."""
    return lambda block: {"data": (len(block), dim)}


def loaded(block: Block, fraction: float) -> int:
    """Return how many rows of a block are used: the first ones."""
    return int(fraction * len(block))


def vectors(
    blocks: list[Block], fraction: float, columns: int, rows: int = 1 << 14
) -> Iterator[tuple[int, npt.NDArray]]:
    """Yield the first row's number, and some rows, of all blocks."""
    for block in blocks:
        table = Table(block.path, "data", columns)
        count = loaded(block, fraction)
        for start in range(0, count, rows):
            yield block.start + start, table.read(start, min(start + rows, count))
