"""The steps of Retro's preprocessing, one after the other, by local processes or the ranks of a launcher."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from megads.data.retro.build import build_database
from megads.data.retro.crew import Crew, run_crew
from megads.data.retro.prepare import Asked, prepare
from megads.data.retro.project import Project, read_config
from megads.errors import ConfigError, DataError
from megads.retro import index
from megads.retro.embedders.base import Embedder, check_model, make_embedder
from megads.retro.estimate import banner
from megads.retro.query import query
from megads.retro.validate import Checked, repair, validate

TASKS = {
    "db-build": ("db-build",),
    "index-train": ("index-train",),
    "index-add": ("index-add",),
    "query-neighbors": ("query-neighbors",),
    "query-pretraining-neighbors": ("query-neighbors",),
    "index-build": ("index-train", "index-add"),
    "build": ("db-build", "index-train", "index-add", "query-neighbors"),
}
"""Megatron's tasks and the steps that each one is."""


@dataclass(frozen=True)
class How:
    """Who does the work, and what stays.

    Attributes:
        rank, size, local_rank: of this process.
        workers: local processes, where no launcher started several; 0: as many as fit.
        cores: of this host.
        keep_vectors: vectors that the index was trained on stay.
        keep_codes: what was added to an index of faiss stays next to it.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    workers: int = 0
    cores: int = 1
    keep_vectors: bool = False
    keep_codes: bool = True


def steps_of(tasks: str) -> tuple[str, ...]:
    """Return the steps of a ``--retro-tasks``, in their order.

    Raises:
        ConfigError: a task is unknown.
    """
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    unknown = [name for name in names if name not in TASKS]
    if unknown or not names:
        raise ConfigError(
            f"--retro-tasks {tasks}: {(unknown or ['nothing'])[0]} is not a task; tasks: {', '.join(TASKS)}"
        )
    wanted = {step for name in names for step in TASKS[name]}
    return tuple(step for step in TASKS["build"] if step in wanted)


def run_steps(folder: Path, asked: Asked, steps: Sequence[str], how: How, stream: TextIO) -> str | None:
    """Run steps; return a line about what the project holds, on rank 0.

    Raises:
        MegadsError: something is wrong; finished blocks stay, and the same command resumes.
        EndedByLeader: on a rank other than 0: rank 0 reports why.
    """
    folder = Path(folder).expanduser().absolute()
    if "db-build" in steps:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        read_config(folder)

    def start(crew: Crew) -> None:
        crew.agree(lambda: _prepared(folder, asked, crew))
        if "db-build" in steps:
            build_database(Project.open(folder), crew)

    def rest(crew: Crew) -> str:
        project = Project.open(folder)
        embedder = functools.cache(lambda: make_embedder(project, _device_rank(crew, how)))
        if "index-train" in steps:
            index.train(project, crew, embedder, keep_vectors=how.keep_vectors)
        if "index-add" in steps:
            index.add(project, crew, embedder, keep_codes=how.keep_codes)
        rows = query(project, crew, embedder) if "query-neighbors" in steps else {}
        return _summary(project, rows)

    def both(crew: Crew) -> str:
        start(crew)
        return rest(crew)

    if how.size > 1:  # one crew: its ranks meet in the order of the stages
        return run_crew(folder, how.rank, how.size, 1, stream, both)
    run_crew(folder, 0, 1, how.workers or how.cores, stream, start)
    return run_crew(folder, 0, 1, _embedding_workers(folder, how), stream, rest)


def _prepared(folder: Path, asked: Asked, crew: Crew) -> bool:
    for line in banner(prepare(folder, asked, check_models)):
        crew.report(line)
    return True


def check_models(project: Project) -> None:
    """Raise ConfigError for an embedder that is missing, or an index that faiss cannot make: a slip is found before
    ``config.json`` names it, which would leave the project without neighbours."""
    own, dim = project.config.own, check_model(project)
    if own["index_type"] != "exact" and dim:
        from megads.retro.indexes import with_faiss

        with_faiss.make_index(own["index_str"], dim)


def _embedding_workers(folder: Path, how: How) -> int:
    """Return the local processes that embed: one where that is a model, which uses all cores or a device itself."""
    is_model = read_config(folder).own.get("embedder") != "hashed"
    return how.workers or (1 if is_model else how.cores)


def _device_rank(crew: Crew, how: How) -> int:
    """Return which device of this host is this process's."""
    return how.local_rank if how.size > 1 else crew.rank


def _summary(project: Project, rows: dict[str, int]) -> str:
    parts = [f"{len(project.database()):,} chunks to retrieve"]
    if rows:
        parts.append("neighbours of " + ", ".join(f"{count:,} {split}" for split, count in rows.items()) + " chunks")
    return f"{project.folder}: {'; '.join(parts)}"


def run_validation(
    folder: Path, share: float, seed: int, how: How, stream: TextIO, *, mend: bool = False
) -> Checked | None:
    """Recompute a share of a project; with ``mend`` remove what is damaged and build it again.

    Raises:
        ConfigError: the share is none.
        DataError: a step was not run yet; or blocks are damaged, without ``mend``.
    """
    folder = Path(folder).expanduser().absolute()
    if not 0 < share <= 1:
        raise ConfigError(f"--retro-task-validate {share:g}: must be above 0 and at most 1")
    read_config(folder)

    def check(crew: Crew) -> Checked:
        project = Project.open(folder)
        embedder: Callable[[], Embedder] = functools.cache(lambda: make_embedder(project, _device_rank(crew, how)))
        return validate(project, crew, embedder, share, seed)

    found = run_crew(folder, how.rank, how.size, _embedding_workers(folder, how), stream, check)
    if found is None or not found.damaged:
        return found
    for path, problem in found.damaged:
        stream.write(f"megads: {path}: {problem}\n")
    if not mend:
        raise DataError(
            f"{folder}: {len(found.damaged)} of {found.blocks} files that were looked at are damaged; add --repair to "
            "build them again"
        )
    repair(Project.open(folder), found)
    return found


def options_of(values: dict[str, Any]) -> Asked:
    """Return what :func:`prepare` reads of the values of a command's options, by its names."""
    short = {name.removeprefix("retro_gpt_"): value for name, value in values.items()}
    return {name: value for name, value in short.items() if value is not None and value != ()}
