"""Start a run from a checkpoint: its own newest, or what ``LOAD`` names."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from megads.checkpoint.format.folders import ASIDE, CheckpointRef, iteration_of
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.load import load_shards
from megads.checkpoint.lora.base import NOTE, base_of, note_of
from megads.checkpoint.resume.compatibility import check_model, classes_of, resume_notes
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.resume.start_point import RestorePlan, StartCheckpoints, find_start, restore_plan
from megads.comm.messages import broadcast_value, first_text
from megads.config.data_stages.changes import same_files
from megads.errors import CheckpointError
from megads.families.retro import is_of_retriever
from megads.monitor.log import LOG
from megads.train.function import compare

if TYPE_CHECKING:
    from megads.train.setup import Training

OTHER_DATA = (
    "had other data: a weight, corpus, file or size has changed since; the sample order changes, and samples may repeat"
)

Offer = tuple[StartCheckpoints, CheckpointRef] | tuple[()] | CheckpointError
"""What rank 0 proposes to all: a checkpoint, none (random weights), or why there is none."""

INHERITED = ("source", "source_format", "max_seq_length", "hf")
"""What checkpoints of a run continue saying of the model that was once imported."""


def resume(training: Training, start: StartCheckpoints | None = None) -> Path | None:
    """Resume from a checkpoint, or start with its weights; return its path, None for random weights. Collective.

    Every rank reads what it answers for. When any of them meets damage, all take the next
    older checkpoint, unless the user named this one. The run may have done steps already:
    all that decides the next one comes from the checkpoint.

    Args:
        training: the run.
        start: checkpoints to which it goes back; None: the run's own, or what ``LOAD`` names.

    Raises:
        CheckpointError: on every rank: no checkpoint can be read, or it does not fit this run.
    """
    offers, skipped = _offers(training, start) if training.groups.rank == 0 else iter(()), ""
    while True:
        offer: Offer | None = broadcast_value(next(offers, None))
        if offer is None:
            raise CheckpointError(
                f"no checkpoint can be read ({skipped}); restore one, or use another RUN_NAME or RUN_DIR for a new run"
            )
        if isinstance(offer, CheckpointError):
            raise offer
        if not offer:
            return None
        start, found = offer
        check_model(found.path, found.manifest, training.run, is_own=start.is_own)
        plan = restore_plan(training.run, start, found.path, found.manifest)
        problem = _try_twice(training, found, plan)
        if problem and start.is_only:
            raise CheckpointError(f"{problem}; it is the checkpoint that was requested, and no other replaces it")
        if not problem:
            _apply(training, found, plan)
            compare(training, found, plan, is_own=start.is_own)
            if start.is_own and not start.is_only and training.groups.rank == 0:
                _put_aside([path for path in start.paths if iteration_of(path) > iteration_of(found.path)])
            return found.path
        skipped = skipped or problem
        if training.groups.rank == 0:
            LOG.warning("checkpoint skipped: %s", problem)


def _try_twice(training: Training, found: CheckpointRef, plan: RestorePlan) -> str:
    """Read a checkpoint, and once more if it cannot be read: a disk or a network may get right what it got wrong.

    Returns:
        The problem of the first rank that has one, the same on every rank; empty: all is well. Collective.
    """
    problem = ""
    for attempt in range(2):
        mine = ""
        try:
            _read(training, found, plan)
        except CheckpointError as error:
            mine = str(error)
        problem = first_text(mine)
        if not problem or attempt:
            break
        LOG.info("checkpoint %s: %s; reading it again", found.path, problem)
    return problem


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


def _offers(training: Training, start: StartCheckpoints | None) -> Iterator[Offer]:
    """Yield what may be tried, the newest first; only one rank looks, so that all see the same."""
    try:
        start = start or find_start(training.run, training.checkpoints)
        if start is None:
            yield ()
            return
        reported: set[str] = set()
        for found in start.candidates():
            for text in found.broken:
                if text not in reported:
                    LOG.warning("checkpoint skipped: %s", text)
            reported |= set(found.broken)
            yield start, found
    except CheckpointError as error:
        yield error


def _read(training: Training, found: CheckpointRef, plan: RestorePlan) -> None:
    """Fill the engine with this rank's tensors.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    manifest = found.manifest
    kinds = manifest.kinds if plan.optimizer else ("weight",)
    # A new optimizer starts from the weights that are for use.
    shards = training.engine.state.owned_shards()
    if training.run.model.lora_rank:
        training.inherited[NOTE] = _read_base(training, found, plan)
        if plan.is_base:
            return
    if new := {*new_head(training, found, plan), *new_retriever(training, plan)}:
        shards = (shard for shard in shards if shard.name not in new)
    with Reader(found.path, manifest, in_use=not plan.optimizer) as reader:
        load_shards(reader, shards, kinds)
        if plan.optimizer:
            training.engine.state.load_whole_states(
                lambda name: tensors_of(reader.state(name, training.parameters[name]))
            )
        else:
            training.engine.state.reset_optimizer()


def _read_base(training: Training, found: CheckpointRef, plan: RestorePlan) -> dict[str, Any]:
    """Fill the frozen weights, and return what checkpoints say of where they are from.

    Raises:
        CheckpointError: the base is not there, is not what it was, or is damaged.
    """
    base = found if plan.is_base else base_of(found.path, found.manifest, training.run.checkpoint.load)
    with Reader(base.path, base.manifest, in_use=True) as reader:
        load_shards(reader, training.engine.state.frozen_shards(), ("weight",))
    return note_of(base)


def new_head(training: Training, found: CheckpointRef, plan: RestorePlan) -> list[str]:
    """Return the parameters of a task's head that a pretrained checkpoint lacks; they keep their initial weights.

    A head of other classes is another one.
    """
    if not training.run.model.num_classes or plan.progress:
        return []
    there = found.manifest.tensors
    names = classes_of(found.manifest)
    is_other = bool(names) and " ".join(names) != " ".join(shlex.split(training.run.finetune.classes))
    return [
        name
        for name, cut in training.parameters.items()
        if name.startswith(("classifier.", "pooler."))
        and (name not in there or there[name].shape != cut.shape or (is_other and name.startswith("classifier.")))
    ]


def new_retriever(training: Training, plan: RestorePlan) -> list[str]:
    """Return what a model that looks at neighbours has and a decoder lacks, whose checkpoint it begins with."""
    return [] if plan.has_retriever else [name for name in training.parameters if is_of_retriever(name)]


def tensors_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter as the reader gives it, with tensors for arrays."""
    # A copy: what was read may belong to the file.
    return {key: torch.tensor(value) if isinstance(value, np.ndarray) else value for key, value in found.items()}


def _apply(training: Training, found: CheckpointRef, plan: RestorePlan) -> None:
    """Set everything else to what was read, and log what differs. Collective."""
    training.engine.state.sync_from_masters()
    manifest = found.manifest
    base = {NOTE: training.inherited[NOTE]} if training.run.model.lora_rank else {}
    training.inherited = {key: manifest.about[key] for key in INHERITED if key in manifest.about} | base
    if plan.optimizer:
        training.engine.state.load_scalars(manifest.scalars)
    if plan.progress and manifest.progress:
        training.progress = Progress.read(manifest.progress)
    if training.groups.rank != 0:
        return
    LOG.info("loaded   %s of %s, iteration %d", plan.text(), found.path, manifest.iteration)
    if added := new_retriever(training, plan):
        numbers = dict.fromkeys(str(int(name.split(".")[1]) + 1) for name in added)
        layers = f"layer{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        LOG.info("new      %d tensors of %s: initial weights", len(added), layers)
    if training.run.model.num_classes and not plan.progress:
        new = new_head(training, found, plan)
        unused = [name for name in manifest.tensors if name not in training.parameters or name in new]
        LOG.info("head     new: %s; unused: %s", ", ".join(new) or "nothing", ", ".join(unused) or "nothing")
    if not plan.progress or training.run.train.evaluate_only:
        return
    for line in resume_notes(manifest, training.run, training.device.type):
        LOG.warning("checkpoint %s", line)
    consumed = int(manifest.progress.get("consumed_samples", 0))
    if not same_files(str(manifest.about.get("data", training.data)), training.data, training.run, consumed):
        LOG.warning("checkpoint %s", OTHER_DATA)
