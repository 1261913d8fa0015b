"""Recompute a share of what a project holds, and compare it bit by bit."""

from __future__ import annotations

import functools
import math
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from megads.data.retro.blocks import Block, problem_of, read_arrays, write_file
from megads.data.retro.build import (
    MERGED,
    Merge,
    cutter_of,
    file_of,
    individual_blocks,
    merged_shapes,
    read_infos,
    shapes_of,
)
from megads.data.retro.crew import Crew, Tick
from megads.data.retro.project import SPLITS, Project, merged_path
from megads.errors import DataError
from megads.retro.embedders.base import Embedder
from megads.retro.index import embed_chunks, encoder, problem_of_index
from megads.retro.indexes.base import Places, code_blocks, is_exact, training_blocks, vector_shapes
from megads.retro.query import Searcher

NOTES = ".damaged"
"""Folder within a project for what the ranks find."""

Arrays = dict[str, npt.NDArray[Any]]
Stage = tuple[str, Callable[[], Sequence[Block]], Callable[[Block, Tick], Arrays], Callable[[Block], Any]]
"""What it is called, its blocks, what makes one, and its shapes."""


@dataclass(frozen=True)
class Checked:
    """What :func:`validate` looked at.

    Attributes:
        blocks: how many files were compared.
        damaged: path and problem of each that differs.
    """

    blocks: int
    damaged: tuple[tuple[Path, str], ...]


def validate(project: Project, crew: Crew, embedder: Callable[[], Embedder], share: float, seed: int) -> Checked:
    """Recompute a share of the blocks of every step, drawn with ``seed``, and compare them. Collective.

    Raises:
        DataError: a step was not run yet.
    """
    crew.agree(lambda: _clear(project.folder / NOTES))
    stages = _Stages(project, embedder, crew)
    blocks = _check_stage(crew, project, stages.chunks, share, seed)
    blocks += crew.agree(stages.whole_files)
    # What follows is made from these: with a damaged one nothing could be compared.
    if not crew.agree(lambda: any((project.folder / NOTES).iterdir())):
        for make in (lambda: [stages.training], lambda: [stages.codes], lambda: stages.neighbors):
            for stage in make():
                blocks += _check_stage(crew, project, stage, share, seed)
    notes = sorted((project.folder / NOTES).glob("*"))
    damaged = [tuple(note.read_text().split("\n", 1)) for note in notes]
    return Checked(blocks, tuple((Path(path), problem) for path, problem in damaged))


def _check_stage(crew: Crew, project: Project, stage: Stage, share: float, seed: int) -> int:
    """Compare a share of the blocks of a stage; return how many."""
    what, blocks, make, shapes = stage
    found = blocks()
    drawn = random.Random(f"{seed} {what}").sample(found, math.ceil(share * len(found)))

    def check(block: Block, tick: Tick) -> None:
        _compare(project.folder, block, shapes(block), lambda: make(block, tick))

    return crew.stage(f"checking {what}", lambda: sorted(drawn, key=lambda block: block.path), check)


def repair(project: Project, checked: Checked) -> None:
    """Remove what is damaged, so that the steps build it again."""
    for path, _ in checked.damaged:
        path.unlink(missing_ok=True)
    shutil.rmtree(project.folder / NOTES, ignore_errors=True)


def _clear(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return True


def _note(folder: Path, path: Path, problem: str) -> None:
    name = str(path.relative_to(folder)).replace("/", "-")
    (folder / NOTES / name).write_text(f"{path}\n{problem}")


def _compare(folder: Path, block: Block, shapes: Any, make: Callable[[], Arrays]) -> None:
    """Note a block that is missing, damaged, or not what ``make`` makes."""
    problem = problem_of(block.path, shapes)
    if not problem:
        found, expected = read_arrays(block.path, shapes), make()
        different = [name for name in shapes if not _equal(found[name], expected[name])]
        problem = f"{different[0]} is not what is computed now" if different else ""
    if problem:
        _note(folder, block.path, problem)


def _equal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    return (first.dtype, first.shape) == (second.dtype, second.shape) and first.tobytes() == second.tobytes()


class _Stages:
    """What each step makes, to be made once more."""

    def __init__(self, project: Project, embedder: Callable[[], Embedder], crew: Crew):
        self._project, self._embedder, self._crew = project, embedder, crew
        self._searcher = Searcher(project, embedder)

    @property
    def chunks(self) -> Stage:
        """Chunks of documents."""
        project = self._project
        cutter = cutter_of(project)

        def make(block: Block, tick: Tick) -> Arrays:
            return cutter.cut(project.files[file_of(project, block)], block.start, block.stop, tick)

        every = [block for number in range(len(project.files)) for block in individual_blocks(project, number)]
        return "chunks", lambda: every, make, shapes_of

    @property
    def training(self) -> Stage:
        """Vectors that the index is trained on, where they were kept."""
        project = self._project

        def make(block: Block, tick: Tick) -> Arrays:
            return {"data": embed_chunks(project, project.database("sampled"), block, self._embedder(), tick)}

        blocks = training_blocks(project) if Places.of(project).training.is_dir() else []
        return "vectors to train on", lambda: blocks, make, lambda block: vector_shapes(self._embedder().dim)(block)

    @property
    def codes(self) -> Stage:
        """What is added to the index, where it was kept."""
        project, places = self._project, Places.of(self._project)
        if not places.codes.is_dir():
            if is_exact(project):
                raise DataError(f"{places.codes}: no such folder; run `megads retro add` first")
            return "vectors of the index", lambda: [], lambda block, tick: {}, lambda block: {}
        encode, columns = encoder(project, self._embedder)

        def make(block: Block, tick: Tick) -> Arrays:
            return {"data": encode(embed_chunks(project, project.database(), block, self._embedder(), tick))}

        return "vectors of the index", lambda: code_blocks(project), make, vector_shapes(columns)

    @property
    def neighbors(self) -> list[Stage]:
        """Neighbours of each split."""
        searcher = self._searcher
        self._crew.agree(lambda: len(searcher.queries.splits))

        def stage(split: str) -> Stage:
            def make(block: Block, tick: Tick) -> Arrays:
                return {"neighbors": searcher.find(split, block, tick)}

            return f"neighbours of {split}", lambda: searcher.blocks(split), make, searcher.shapes

        return [stage(split) for split in SPLITS]

    def whole_files(self) -> int:
        """Compare the tables of all files, and the checksums of indexes of faiss; return how many."""
        project, infos = self._project, read_infos(self._project.folder)
        for table in MERGED:
            path, shapes = merged_path(project.folder, table), merged_shapes(infos, table)
            again = project.folder / NOTES / f".{table}.hdf5"
            write_file(again, Merge(project, infos, table).fill)
            expected = read_arrays(again, shapes)
            _compare(project.folder, Block(0, 0, path), shapes, functools.partial(dict, expected))
            again.unlink()
        if is_exact(project):
            return len(MERGED)
        places = Places.of(project)
        for path in (places.empty, places.added):
            if problem := problem_of_index(path):
                _note(project.folder, path, problem)
        return len(MERGED) + 2
