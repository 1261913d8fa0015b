"""Write a checkpoint of ours as Megatron's files, for any number of tensor and pipeline ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megads.checkpoint.convert.megatron.arguments import Target, check_target, namespace
from megads.checkpoint.convert.megatron.merge import Floats, cut_out, qkv_to_theirs, with_rows
from megads.checkpoint.convert.megatron.names import Style, theirs_of
from megads.checkpoint.convert.torch_files.write import DTYPES, Later, TorchFile
from megads.checkpoint.format.atomic_folder import new_folder
from megads.checkpoint.format.commit import sync_folder
from megads.checkpoint.format.reader import VOCABULARY, Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.resume.compatibility import model_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.decoder import spec_of

_WITH_STATE = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "output_layer")
"""Modules of Megatron-core that look for ``_extra_state``, which is None without fp8."""


@dataclass(frozen=True)
class Wanted:
    """A tensor of a pipeline stage: Megatron's name, ours, and its slice."""

    theirs: str
    ours: str
    cut: ShardLayout


@dataclass
class _Stage:
    """The tensors of a pipeline stage in order, and the places of those of one rank in its file."""

    wanted: list[Wanted] = field(default_factory=list)

    def places(self, target: Target) -> list[Later]:
        return [
            Later(key, each.cut.of(0, target.tensor).local_shape, DTYPES[target.dtype])
            for key, each in enumerate(self.wanted)
        ]


def export_megatron(
    reader: Reader, folder: Path, target: Target, *, written: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Write ``folder``, which Megatron can ``--load``, and return the path of the checkpoint in it.

    One tensor is in memory at a time. Nothing is visible under the name ``folder`` before all
    of it is on disk.

    Args:
        reader: of the checkpoint.
        folder: to be made.
        target: layout, names and type.
        written: called with how many of how many tensors are done.

    Raises:
        CheckpointError: ``folder`` already exists or cannot be written, the checkpoint is
            damaged, or Megatron cannot have such a model.
    """
    model = model_of(reader.path, reader.manifest)
    check_target(model, target)
    name = "release" if target.iteration is None else f"iter_{target.iteration:07d}"
    with new_folder(folder) as part:
        (part / name).mkdir()
        _write(reader, model, part / name, target, written)
        sync_folder(part / name)
        _write_tracker(part / "latest_checkpointed_iteration.txt", target)
    return folder / name


def _write(reader: Reader, model: ModelConfig, into: Path, target: Target, written: Callable[[int, int], None]) -> None:
    args = namespace(model, target, reader.manifest)
    stages = [_stage(model, target, stage) for stage in range(target.pipe)]
    total, done = sum(len(stage.wanted) for stage in stages), 0
    for number, stage in enumerate(stages):
        places = stage.places(target)
        content = {
            "args": args,
            "checkpoint_version": 3.0,
            "iteration": target.iteration or 0,
            "model": _nested(stage, places, target.style),
            "num_floating_point_operations_so_far": 0,
        }
        with ExitStack() as open_files:
            files = []
            for rank in range(target.tensor):
                folder = into / (f"mp_rank_{rank:02d}" + (f"_{number:03d}" if target.pipe > 1 else ""))
                folder.mkdir()
                files.append(open_files.enter_context(TorchFile(folder / "model_optim_rng.pt", content)))
            for place, each in zip(places, stage.wanted, strict=True):
                whole = _whole(reader, model, each)
                for rank, file in enumerate(files):
                    file.write(place, _fitting(cut_out(whole, each.cut, rank, target.tensor), each, target))
                done += 1
                written(done, total)
        for file_folder in into.iterdir():
            sync_folder(file_folder)


def _write_tracker(path: Path, target: Target) -> None:
    with open(path, "w", encoding="utf8") as file:
        file.write("release" if target.iteration is None else str(target.iteration))
        file.flush()
        os.fsync(file.fileno())


def _stage(model: ModelConfig, target: Target, number: int) -> _Stage:
    """Return what pipeline stage ``number`` holds."""
    count = model.num_layers // target.pipe
    mine, last = range(number * count, (number + 1) * count), number == target.pipe - 1
    stage = _Stage()
    rows = target.vocab_rows(model)
    for each in spec_of(model).parameters():
        name, cut = each.name, ShardLayout(each.shape, each.dim, each.parts)
        if name in VOCABULARY:
            cut = ShardLayout((rows, model.hidden_size), 0, (rows,))
        if ".attention.qkv." in name:
            # Its groups of heads follow one another, so that it is cut like a matrix of one part.
            cut = ShardLayout(cut.shape, 0, cut.shape[:1])
        layer = each.step - 1
        if layer in mine:
            rest = name.split(".", 2)[2]
            stage.wanted.append(Wanted(theirs_of(rest, target.style, layer - mine.start), name, cut))
        elif last if layer == model.num_layers else layer < 0 and number == 0:
            stage.wanted.append(Wanted(theirs_of(name, target.style, None), name, cut))
    if model.tied_embeddings and last and target.pipe > 1:
        copy = theirs_of("embedding.weight", target.style, None, copy=True)
        stage.wanted.append(Wanted(copy, "embedding.weight", ShardLayout((rows, model.hidden_size), 0, (rows,))))
    return stage


def _whole(reader: Reader, model: ModelConfig, wanted: Wanted) -> Floats:
    """Return the whole parameter, rows in Megatron's order."""
    found = reader.whole(wanted.ours)
    if wanted.ours in VOCABULARY:
        return with_rows(found, wanted.cut.shape[0])
    if ".attention.qkv." in wanted.ours:
        return qkv_to_theirs(found, model.num_heads, model.num_kv_heads, model.head_dim)
    return found


def _fitting(numbers: Floats, wanted: Wanted, target: Target) -> Floats:
    largest = torch.finfo(DTYPES[target.dtype]).max
    if target.dtype == "fp16" and np.abs(numbers).max(initial=0) > largest:
        raise CheckpointError(f"{wanted.ours} has elements above {largest:g}, the largest of fp16; use --dtype bf16")
    return numbers


def _nested(stage: _Stage, places: list[Later], style: Style) -> dict[str, Any]:
    """Return the model as Megatron keeps it: core flat, legacy in dictionaries of embedding, encoder and head."""
    model: dict[str, Any] = {}
    for each, place in zip(stage.wanted, places, strict=True):
        if style != "legacy":
            model[each.theirs] = place
            module, _, kind = each.theirs.rpartition(".")
            if kind == "weight" and module.endswith(_WITH_STATE):
                model[f"{module}._extra_state"] = None
            continue
        inner = model
        for key in _folders(each.theirs):
            inner = inner.setdefault(key, {})
        inner[each.theirs[sum(len(key) + 1 for key in _folders(each.theirs)) :]] = place
    return model


def _folders(name: str) -> Iterator[str]:
    """Yield the dictionaries in which legacy Megatron keeps a tensor; an encoder's names are one key."""
    words = name.split(".")
    depth = 2 if words[:2] == ["language_model", "encoder"] else len(words) - 1
    yield from words[:depth]
