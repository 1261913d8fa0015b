"""How many samples of each split have neighbours, and of how many samples they are the first ones.

The order of a split's samples follows from how many were planned, so a run plans as many as were queried.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping

from megads.config.schedule.batches import planned_samples
from megads.config.schema import RunConfig
from megads.data.retro.project import CONFIG, Project, ProjectConfig
from megads.data.samples.mix import Mix
from megads.data.samples.retro.rows import RetroRow
from megads.data.samples.retro.samples import RetroSamples
from megads.errors import ConfigError, DataError
from megads.families.table import FAMILIES
from megads.text.plural import plural


def is_retro(run: RunConfig) -> bool:
    """Return whether a run trains on samples with neighbours."""
    return FAMILIES[run.model.family].samples == "retro" and not run.finetune.task


def project_of(run: RunConfig) -> Project:
    """Return the project of a run.

    Raises:
        ConfigError: it names none, or asks for more neighbours than the project has.
        DataError: the project cannot be read.
    """
    if not run.data.retro_project_dir:
        raise ConfigError(
            f"a {run.model.family} model is trained with neighbours of its samples: set RETRO_PROJECT_DIR to a folder "
            "that `megads retro build` has made"
        )
    project = Project.open(run.data.retro_project_dir)
    wanted = run.model.retro_num_neighbors
    if wanted > project.num_neighbors:
        raise ConfigError(
            f"RETRO_NUM_NEIGHBORS={wanted}: {project.folder} has {project.num_neighbors} neighbours of a chunk; use "
            f"{project.num_neighbors} or less"
        )
    return project


def data_path_of(project: Project) -> str:
    """Return the DATA_PATH of which the samples are made, both where neighbours are queried and where they are read."""
    files = ((weight, project.folder / "data" / prefix) for weight, prefix in project.config.data_path)
    return " ".join(f"{weight!r} {shlex.quote(str(path))}" for weight, path in files)


def planned_samples_of(config: ProjectConfig, split: str) -> tuple[int, ...]:
    """Return for how many samples neighbours may have been asked: by `megads retro`, and by Megatron-core.

    Megatron-core counts the samples of every validation of a run, of which ours all read the first ones.
    """
    if split == "train":
        return (config.train_samples,)
    once = config.eval_iters * config.global_batch_size
    if split == "test" or not config.eval_interval:
        return (once,)
    iters = config.train_samples // config.global_batch_size
    return tuple(dict.fromkeys((once, (iters // config.eval_interval + 1) * once)))


def queried_samples(project: Project, split: str, *, verified: bool = True) -> tuple[int, int]:
    """Return how many samples of a split have neighbours, and of how many samples they are the first ones.

    Args:
        verified: refuse a split of which some samples have no neighbours.

    Raises:
        DataError: none have, or, with ``verified``, not as many as were asked for.
    """
    rows, chunks = project.num_neighbor_rows(split), project.chunks_per_sample
    planned, queried = planned_samples_of(project.config, split), rows // chunks
    if not queried:
        raise DataError(f"{project.folder}: no {split} sample has neighbours; run `megads retro query`")
    is_complete = queried in planned and not rows % chunks
    if verified and not is_complete:
        counts = " or ".join(str(each * chunks) for each in planned)
        raise DataError(
            f"{project.folder}: neighbours of {rows} chunks of {split} samples, {counts} expected by {CONFIG}; rerun "
            "`megads retro query`, or set RETRO_VERIFY_NEIGHBOR_COUNT=0 to use those that are there"
        )
    return queried, queried if is_complete else min((each for each in planned if each >= queried), default=queried)


def with_planned_sizes(run: RunConfig, needed: Mapping[str, int]) -> dict[str, int]:
    """Return how many samples of each split are planned, for ``needed`` of each; 0 where none are.

    Raises:
        ConfigError, DataError: see :func:`project_of` and :func:`queried_samples`; or more samples are needed than have
            neighbours, and not to be repeated.
    """
    if not is_retro(run):
        return dict(needed)
    project = project_of(run)
    sizes = dict(needed)
    for split, count in needed.items():
        if not count:
            continue
        queried, sizes[split] = queried_samples(project, split, verified=run.data.retro_verify_neighbor_count)
        if count > queried and not run.data.retro_cyclic_train_iters:
            less = "lower TRAIN_ITERS" if split == "train" else "lower EVAL_ITERS or GLOBAL_BATCH"
            raise DataError(
                f"{split}: {count} samples are needed, and {queried} of {project.folder} have neighbours; {less}, or "
                "set RETRO_CYCLIC_TRAIN_ITERS to the iterations of the run: samples then repeat"
            )
    return sizes


def with_neighbors(
    run: RunConfig, splits: Mapping[str, Mix | None], needed: Mapping[str, int]
) -> dict[str, Mix | RetroSamples | None]:
    """Return the samples of each split with their neighbours, of which ``needed`` can be asked for.

    Raises:
        ConfigError, DataError: see :func:`with_planned_sizes`.
    """
    if not is_retro(run):
        return dict(splits)
    project, parts = project_of(run), RetroRow.of(run.model)
    verified = run.data.retro_verify_neighbor_count
    found: dict[str, Mix | RetroSamples | None] = {}
    for split, mix in splits.items():
        if mix is None:
            found[split] = None
            continue
        queried, _ = queried_samples(project, split, verified=verified)
        found[split] = RetroSamples(
            mix,
            project,
            split,
            queried=queried,
            size=max(queried, needed[split]),
            parts=parts,
            vocab_size=run.model.vocab_size,
        )
    return found


def open_neighbors(run: RunConfig, splits: Iterable[str]) -> None:
    """Open every file of neighbours of ``splits``: one that is cut short ends a run before it starts.

    Raises:
        ConfigError, DataError: see :func:`project_of`; or a file cannot be read.
    """
    project = project_of(run)
    for split in splits:
        project.open_neighbors(split)


def neighbors_fingerprint(run: RunConfig) -> str:
    """Return what differs when a run has other neighbours, which a resumed run compares; empty without any."""
    if not is_retro(run):
        return ""
    project = project_of(run)
    told = [
        sorted(project.config.neighbor_dirs.items(), key=str),
        len(project.database()),
        run.model.retro_num_neighbors,
    ]
    return "-" + hashlib.blake2b(json.dumps(told).encode(), digest_size=4).hexdigest()


def neighbors_line(run: RunConfig) -> str:
    """Return the neighbours of a run's samples, for its banner."""
    project, model = project_of(run), run.model
    queried, _ = queried_samples(project, "train", verified=run.data.retro_verify_neighbor_count)
    repeats = ", which repeat" if planned_samples(run) > queried else ""
    return (
        f"{model.retro_num_neighbors} of {project.num_neighbors} per chunk of {model.retro_chunk_length} tokens, from "
        f"{plural(len(project.database()), 'chunk')} in {project.folder}; of {plural(queried, 'train sample')}{repeats}"
    )
