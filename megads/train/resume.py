"""Start a run from a checkpoint: its own newest, or what ``LOAD`` names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from megads.checkpoint.format.folders import ASIDE, CheckpointRef, iteration_of
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.load import load_pieces
from megads.checkpoint.resume.compatibility import check_model, resume_notes
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.resume.start_point import RestorePlan, Start, find_start, taken_of
from megads.comm.groups import Groups
from megads.comm.messages import broadcast_value
from megads.errors import CheckpointError
from megads.monitor.log import LOG

if TYPE_CHECKING:
    from megads.train.setup import Training

OTHER_DATA = (
    "had other data: a weight, corpus, file or size has changed since; the sample order changes, and samples may repeat"
)

INHERITED = ("source", "source_format", "max_seq_length", "hf")
"""What checkpoints of a run continue saying of the model that was once imported."""


@dataclass(frozen=True)
class _Offer:
    """What rank 0 proposes to all: a checkpoint, or why there is none."""

    start: Start | None = None
    found: CheckpointRef | None = None
    problem: CheckpointError | None = None


def resume(training: Training) -> Path | None:
    """Go on from a checkpoint, or begin with its weights; return its path, None for new weights. Collective.

    Every rank reads what it answers for. When any of them meets damage, all take the next
    older checkpoint, unless the user named this one.

    Raises:
        CheckpointError: on every rank: no checkpoint can be read, or it does not fit this run.
    """
    return _resume(training, lambda: find_start(training.run, training.checkpoints))


def resume_from(training: Training, start: Start) -> Path:
    """Have a run be what it was at one of the checkpoints of ``start``, and return that one's path. Collective.

    The run may have done steps already: all that decides the next one comes from the checkpoint.

    Raises:
        CheckpointError: on every rank: none of them can be read.
    """
    path = _resume(training, lambda: start)
    assert path is not None, "a start has checkpoints"
    return path


def _resume(training: Training, find: Callable[[], Start | None]) -> Path | None:
    offers, passed_over = _offers(find) if training.groups.rank == 0 else iter(()), ""
    while True:
        offer = _told_by_first(next(offers, None), training.groups)
        if offer is None:
            raise CheckpointError(
                f"no checkpoint can be read ({passed_over}); restore one, or use another RUN_NAME or RUN_DIR "
                "for a new run"
            )
        if offer.problem is not None:
            raise offer.problem
        if offer.start is None or offer.found is None:
            return None
        start, found = offer.start, offer.found
        check_model(found.path, found.manifest, training.run, is_own=start.is_own)
        taken = taken_of(training.run, start, found.path, found.manifest)
        problem = _try_twice(training, found, taken)
        if problem and start.is_only:
            raise CheckpointError(f"{problem}; it is the checkpoint that was requested, and no other replaces it")
        if not problem:
            _go_on(training, found, taken)
            if start.is_own and not start.is_only and training.groups.rank == 0:
                _put_aside([path for path in start.paths if iteration_of(path) > iteration_of(found.path)])
            return found.path
        passed_over = passed_over or problem
        if training.groups.rank == 0:
            LOG.warning("checkpoint skipped: %s", problem)


def _try_twice(training: Training, found: CheckpointRef, taken: RestorePlan) -> str:
    """Read a checkpoint, and once more if it cannot be read: a disk or a network may get right what it got wrong."""
    problem = _try(training, found, taken)
    if problem:
        LOG.info("checkpoint %s: %s; reading it again", found.path, problem)
        problem = _try(training, found, taken)
    return problem


def _try(training: Training, found: CheckpointRef, taken: RestorePlan) -> str:
    """Read a checkpoint; return what the first rank that could not said, on every rank. Collective."""
    problem = ""
    try:
        _read(training, found, taken)
    except CheckpointError as error:
        problem = str(error)
    return _first_problem(problem, training.groups, training.device)


def _put_aside(damaged: Iterable[Path]) -> None:
    """Rename checkpoints that were skipped, so that the next save does not take them for an abandoned future.

    Most of one with a flipped bit is worth keeping, and what a file system could not read today it may tomorrow.
    """
    for path in damaged:
        names = (path.with_name(f"{path.name}{ASIDE}{f'.{count}' if count else ''}") for count in itertools.count())
        aside = next(name for name in names if not os.path.lexists(name))
        try:
            os.replace(path, aside)
        except OSError as error:
            LOG.warning("checkpoint %s could not be renamed: %s", path, error.strerror)
        else:
            LOG.warning("checkpoint %s is %s now; nothing reads or removes it under that name", path, aside.name)


def _offers(find: Callable[[], Start | None]) -> Iterator[_Offer]:
    """Yield what may be tried, the newest first; only one rank looks, so that all see the same."""
    try:
        start = find()
        if start is None:
            yield _Offer()
            return
        told: set[str] = set()
        for found in start.candidates():
            for text in found.broken:
                if text not in told:
                    LOG.warning("checkpoint skipped: %s", text)
            told |= set(found.broken)
            yield _Offer(start, found)
    except CheckpointError as error:
        yield _Offer(problem=error)


def _told_by_first(offer: _Offer | None, groups: Groups) -> _Offer | None:
    """Return rank 0's ``offer``. Collective."""
    if groups.grid.world_size == 1:
        return offer
    told: _Offer | None = broadcast_value(offer)
    return told


def _first_problem(mine: str, groups: Groups, device: torch.device) -> str:
    """Return the problem of the first rank that has one, the same on every rank; empty: all is well. Collective."""
    world = groups.grid.world_size
    if world == 1:
        return mine
    first = torch.tensor([groups.rank if mine else world], device=device)
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    rank = int(first.item())
    if rank == world:
        return ""
    return str(broadcast_value(mine, rank))


def _read(training: Training, found: CheckpointRef, taken: RestorePlan) -> None:
    """Fill the engine with this rank's numbers.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    manifest = found.manifest
    kinds = manifest.kinds if taken.optimizer else ("weight",)
    # A fresh optimizer begins where the weights are those for use.
    with Reader(found.path, manifest, in_use=not taken.optimizer) as reader:
        load_pieces(reader, training.engine.pieces(), kinds)
        if taken.optimizer:
            training.engine.load_whole_states(lambda name: tensors_of(reader.state(name, training.parameters[name])))
        else:
            training.engine.reset_optimizer()


def tensors_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter as the reader gives it, with tensors for arrays."""
    # A copy: what was read may belong to the file.
    return {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in found.items()}


def _go_on(training: Training, found: CheckpointRef, taken: RestorePlan) -> None:
    """Have everything else follow from what was read, and say what differs. Collective."""
    training.engine.spread()
    manifest = found.manifest
    training.inherited = {key: manifest.about[key] for key in INHERITED if key in manifest.about}
    if taken.optimizer:
        training.engine.load_scalars(manifest.scalars)
    if taken.progress and manifest.progress:
        training.progress = Progress.read(manifest.progress)
    if training.groups.rank == 0:
        _tell(training, found, taken)


def _tell(training: Training, found: CheckpointRef, taken: RestorePlan) -> None:
    manifest = found.manifest
    LOG.info("loaded   %s of %s, iteration %d", taken.text(), found.path, manifest.iteration)
    if not taken.progress or training.run.train.evaluate_only:
        return
    lines = resume_notes(manifest, training.run, training.device.type)
    if manifest.about.get("data", training.data) != training.data:
        lines.append(OTHER_DATA)
    for line in lines:
        LOG.warning("checkpoint %s", line)
