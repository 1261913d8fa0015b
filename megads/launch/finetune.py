"""What ``megads finetune`` adds to a request: the name of the run, the head, and the steps that the epochs take."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from megads.checkpoint.convert.pretrained import import_once, is_of_others
from megads.checkpoint.format.folders import iteration_of
from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.checkpoint.resume.start_point import names_own
from megads.cluster.machine import machine_name
from megads.config.schema import RunConfig
from megads.config.sources.resolve import LENGTHS, Resolved
from megads.data.tasks.samples import steps_per_epoch
from megads.data.tasks.task import read_task
from megads.errors import ConfigError
from megads.launch.chat_request import GIVEN, chat_pairs, check_files
from megads.launch.preflight.checkpoint_start import plain_folder
from megads.launch.request import TrainRequest, resolve_request
from megads.launch.supervise.watch import say

ANY_LENGTH = "train.train_iters=1"
"""Stands for the steps of all epochs until the batch is known."""
LOADS = ("--load", "--pretrained-checkpoint")
STATED = ("num_heads", "num_kv_heads", "head_dim", "norm_epsilon", "activation")
"""Settings of the model that old files of Megatron lack."""


def finetune_request(request: TrainRequest) -> TrainRequest:
    """Return ``request`` as one that finetunes.

    Raises:
        ConfigError: it names no task, or settings that finetuning does not have.
        DataError: a file of the task is missing or broken.
    """
    found = resolve_request(request, machine_name(request.hostname, request.env, request.root), needs_checkpoint=False)
    run = found.run
    if run.finetune.is_chat:
        check_files(run)
    elif run.finetune.epochs or not run.finetune.task:  # else the checkpoint may say which classes there are
        read_task(run.finetune)
    pairs = list(request.pairs)
    if not (run.name or run.dir or run.checkpoint.dir or run.preset):
        pairs.append(f"name={_name(run)}")
        run = run.model_copy(update={"name": _name(run)})
    load = run.checkpoint.load
    has_length = any(found.origins[name].layer in GIVEN for name in LENGTHS)
    pairs += [] if has_length else [ANY_LENGTH]
    settled = partial(settle, has_length=has_length)
    if load and is_of_others(Path(load)):
        return replace(_from_others(request, found, run, pairs), settle=settled)
    if load and not run.checkpoint.finetune and not names_own(load, checkpoint_folder(run, plain_folder(run))):
        if found.origins["checkpoint.finetune"].layer in GIVEN:
            raise ConfigError(f"FINETUNE=0: megads finetune takes the weights of LOAD={load} only; drop it")
        pairs.append("checkpoint.finetune=true")
    return replace(request, pairs=tuple(pairs), settle=settled)


def _from_others(request: TrainRequest, found: Resolved, run: RunConfig, pairs: list[str]) -> TrainRequest:
    """Return the request with LOAD naming a checkpoint that is made of another program's folder, once, in the cache."""
    folder = Path(os.path.realpath(run.checkpoint.load))
    cache = Path(os.path.expanduser(run.data.cache_dir)).absolute()
    stated = {name: getattr(run.model, name) for name in STATED if found.origins[f"model.{name}"].layer in GIVEN}
    final = import_once(folder, cache, run.model.vocab_multiple, stated, say)
    kept = [pair for pair in pairs if not pair.startswith("checkpoint.load=")]
    flags = tuple(each for each in request.flags if each[0] not in LOADS)
    more = (f"checkpoint.load={final}", "checkpoint.finetune=true")
    return replace(request, pairs=(*kept, *more), flags=flags)


def _name(run: RunConfig) -> str:
    """Return the name of a run: of what it starts from, and the task."""
    task, load = run.finetune.task.lower(), run.checkpoint.load
    parts = list(Path(load).absolute().parts[1:]) if load else []
    while parts and (iteration_of(Path(parts[-1])) >= 0 or parts[-1] in ("checkpoints", "release")):
        parts.pop()
    return f"{parts[-1]}-{task}"[:100] if parts else task


def settle(asked: Resolved, run: RunConfig, given: tuple[str, ...], *, has_length: bool) -> tuple[str, ...]:
    """Return the pairs of ``--set`` with what follows from the files of the task and the batch of the derived ``run``.

    Args:
        asked: the settings before any value was derived.
        given: the pairs so far.
        has_length: whether the user says how long the run is.

    Raises:
        ConfigError: an epoch has no step, or a setting does not go with finetuning.
    """
    if run.train.rampup_batch_size:
        text = f"RAMPUP_BATCH_SIZE={run.train.rampup_batch_size!r}"
        raise ConfigError(f"{text}: all steps of an epoch have as many samples; leave it unset")
    kept = [each for each in given if has_length or each != ANY_LENGTH]
    scored = [] if run.finetune.epochs else [*([] if has_length else [ANY_LENGTH]), "train.evaluate_only=true"]
    if run.finetune.is_chat:
        return (*kept, *chat_pairs(asked, run, has_length=has_length), *scored)
    task = read_task(run.finetune)
    if run.optim.optimizer == "sophiag":
        raise ConfigError("OPTIMIZER=sophiag draws labels from the vocabulary, which a task has none of; use adamw")
    pairs = [*kept, f"model.num_classes={task.num_outputs}"]
    if task.choices > 1:
        pairs.append(f"finetune.choices={task.choices}")
    if task.classes and not run.finetune.classes:
        pairs.append(f"finetune.classes={shlex.join(task.classes)}")
    if not run.finetune.epochs:
        return (*pairs, *scored)
    steps = steps_per_epoch(task.num_train, run.train.global_batch, keep_last=run.finetune.keep_last)
    if not has_length:
        pairs.append(f"train.train_iters={run.finetune.epochs * steps}")
    if asked.origins["checkpoint.save_interval"].layer not in GIVEN:
        pairs.append(f"checkpoint.save_interval={steps}")
    return tuple(pairs)
