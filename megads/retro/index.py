"""``index/``: train an index on sampled chunks, and add all chunks that can be retrieved."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.retro.blocks import Block, missing_blocks, write_arrays
from megads.data.retro.build import remove_leftovers
from megads.data.retro.crew import Crew, Tick
from megads.data.retro.database import Database
from megads.data.retro.project import Project
from megads.data.retro.samples import text_of
from megads.errors import DataError
from megads.retro.embedders.base import Embedder
from megads.retro.indexes.base import (
    Index,
    Places,
    code_blocks,
    is_exact,
    loaded,
    training_blocks,
    vector_shapes,
    vectors,
)
from megads.retro.indexes.exact import ExactIndex
from megads.storage.durable import sync, write_synced
from megads.storage.open_file import write_cure
from megads.storage.reading import read_json

_AT_ONCE = 1024  # chunks that are embedded between two looks at the other processes
_CRC_BYTES = 1 << 24
IN_MEMORY_BYTES = 1 << 30
"""Of vectors that the exact index holds; more of them are read again for every group of queries."""


def embed_chunks(
    project: Project, database: Database, block: Block, embedder: Embedder, tick: Tick
) -> npt.NDArray[np.float32]:
    """Return the vectors of a block of chunks of a table, float32 [chunks, dim]."""
    parts = []
    for start in range(block.start, block.stop, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, block.stop))
        parts.append(embedder.embed([text_of(database.chunk(i).tolist(), project) for i in numbers], tick))
    return np.concatenate(parts)


def train(project: Project, crew: Crew, embedder: Callable[[], Embedder], *, keep_vectors: bool = False) -> None:
    """Train the index on the sampled chunks, unless that was done. Collective. The exact index needs none.

    Raises:
        MegadsError: the string of the index is wrong, or there are too few chunks for it.
    """
    if is_exact(project):
        return
    from megads.retro.indexes import with_faiss

    places, own = Places.of(project), project.config.own
    # Looked at before the stage: while it lasts rank 0 may finish, and not all would see the same.
    todo = crew.agree(lambda: bool(problem_of_index(places.empty, crew.report)))
    if not todo:
        return
    dim = embedder().dim
    untrained = with_faiss.make_index(own["index_str"], dim)
    blocks = [] if untrained.is_trained else training_blocks(project)
    database = project.database("sampled")

    def make(block: Block, tick: Tick) -> None:
        write_arrays(block.path, {"data": embed_chunks(project, database, block, embedder(), tick)})

    crew.stage("vectors to train on", lambda: _missing(blocks, dim, crew), make, "chunks")

    def finish() -> None:
        rows = _gather(blocks, own["train_load_fraction"], dim)
        crew.report(f"training {own['index_str']} on {len(rows):,} vectors")
        write_index(places.empty, with_faiss.train_index(own["index_str"], dim, rows))
        if not keep_vectors:
            shutil.rmtree(places.training.parent, ignore_errors=True)

    crew.alone(finish)


def _gather(blocks: list[Block], fraction: float, dim: int) -> npt.NDArray[np.float32]:
    """Return the vectors of blocks in one array, of which there is room for one."""
    out, filled = np.empty((sum(loaded(block, fraction) for block in blocks), dim), np.float32), 0
    for _, rows in vectors(blocks, fraction, dim):
        out[filled : filled + len(rows)] = rows
        filled += len(rows)
    return out


def _missing(blocks: Sequence[Block], columns: int, crew: Crew) -> list[Block]:
    for folder in {block.path.parent for block in blocks}:
        remove_leftovers(folder)
    wanted, notes = missing_blocks(blocks, vector_shapes(columns))
    for note in notes:
        crew.report(note)
    return wanted


def add(project: Project, crew: Crew, embedder: Callable[[], Embedder], *, keep_codes: bool = True) -> None:
    """Add all chunks that can be retrieved to the index, unless that was done. Collective.

    Raises:
        DataError: the index is not trained.
    """
    places, own = Places.of(project), project.config.own
    exact = is_exact(project)
    if not exact and not crew.agree(lambda: bool(problem_of_index(places.added, crew.report))):
        return
    crew.agree(lambda: check_trained(project))
    encode, columns = encoder(project, embedder)
    database = project.database()

    def make(block: Block, tick: Tick) -> None:
        write_arrays(block.path, {"data": encode(embed_chunks(project, database, block, embedder(), tick))})

    crew.stage("vectors of the index", lambda: _missing(code_blocks(project), columns, crew), make, "chunks")

    def finish() -> None:
        from megads.retro.indexes import with_faiss

        index = with_faiss.load_faiss().read_index(str(places.empty))
        with_faiss.add_rows(index, vectors(code_blocks(project), own["add_load_fraction"], columns))
        write_index(places.added, index)
        if not keep_codes:
            shutil.rmtree(places.codes, ignore_errors=True)

    if not exact:
        crew.alone(finish)


def check_trained(project: Project) -> bool:
    """Return True; refuse to add to an index that is not trained."""
    path = Places.of(project).empty
    if not is_exact(project) and (problem := problem_of_index(path)):
        raise DataError(f"{path}: {problem}; run `megads retro train-index` first")
    return True


def encoder(
    project: Project, embedder: Callable[[], Embedder]
) -> tuple[Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]], int]:
    """Return what turns vectors into rows of ``add_codes``, and the columns of these."""
    dim = embedder().dim
    if is_exact(project):
        return lambda rows: rows, dim
    from megads.retro.indexes import with_faiss

    empty = with_faiss.load_faiss().read_index(str(Places.of(project).empty))
    return lambda rows: with_faiss.encode(empty, rows), with_faiss.code_columns(empty, dim)


def open_index(project: Project, dim: int) -> Index:
    """Return the filled index.

    Args:
        project: whose index it is.
        dim: numbers of a vector.

    Raises:
        DataError: it is not there, not complete or damaged.
    """
    places, own = Places.of(project), project.config.own
    if not is_exact(project):
        from megads.retro.indexes.with_faiss import FaissIndex

        if problem := problem_of_index(places.added):
            raise DataError(f"{places.added}: {problem}; run `megads retro add` first")
        return FaissIndex.read(places.added, int(own["nprobe"]), int(own["ef_search"]))
    blocks, fraction = code_blocks(project), own["add_load_fraction"]
    wanted = [block for block in blocks if not block.path.is_file()]
    if wanted:
        raise DataError(f"{wanted[0].path}: no such file; run `megads retro add` first")
    rows = sum(loaded(block, fraction) for block in blocks)
    if rows * dim * 4 <= IN_MEMORY_BYTES:
        held = list(vectors(blocks, fraction, dim))
        return ExactIndex(lambda: held)
    return ExactIndex(lambda: vectors(blocks, fraction, dim))


def write_index(path: Path, index: Any) -> None:
    """Write an index of faiss, whole or not at all, and its size and checksum next to it.

    Raises:
        DataError: the folder cannot be written or is full.
    """
    from megads.retro.indexes.with_faiss import load_faiss

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _seal_path(path).unlink(missing_ok=True)
        load_faiss().write_index(index, str(temporary))
        sync(temporary)
        seal = {"bytes": temporary.stat().st_size, "crc32": _crc(temporary)}
        write_synced(_seal_path(path), json.dumps(seal).encode())
        temporary.replace(path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:
        cure = write_cure(error, "use another folder") if isinstance(error, OSError) else "free some space"
        raise DataError(f"{path}: cannot be written ({' '.join(str(error).split())[:120]}); {cure}") from None


def problem_of_index(path: Path, report: Callable[[str], None] | None = None) -> str:
    """Return what is wrong with an index of faiss, empty if nothing is; ``report`` gets a line about a damaged one.

    An index without a checksum next to it, made by Megatron, is taken as it is.
    """
    if not path.is_file():
        return "no such file"
    seal = _seal_path(path)
    if not seal.is_file():
        problem = "" if path.stat().st_size else "is empty"
    else:
        try:
            found = read_json(seal)
            expected = found["bytes"], found["crc32"]
        except (OSError, ValueError, KeyError, TypeError):
            expected = (-1, -1)
        is_same = (path.stat().st_size, expected[1]) == (expected[0], _crc(path))
        problem = "" if is_same else "differs from its checksum"
    if problem and report:
        report(f"{path}: {problem}; it is built again")
    return problem


def _seal_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(_CRC_BYTES):
            crc = zlib.crc32(part, crc)
    return crc
