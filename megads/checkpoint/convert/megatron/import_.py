"""Make a checkpoint of ours from Megatron's files: find, join the ranks, rename, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.checkpoint.convert.megatron.model import MegatronModel
from megads.checkpoint.convert.writer import new_writer
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.config.schema import ModelConfig


@dataclass(frozen=True)
class Imported:
    """The checkpoint that was made, the model it is of, and lines worth showing."""

    path: Path
    model: ModelConfig
    notes: tuple[str, ...]


def import_megatron(
    place: Path,
    folder: Path,
    stated: Mapping[str, Any] | None = None,
    *,
    version: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    function: Callable[[], Mapping[str, Any]] = dict,
) -> Imported:
    """Write the weights of a Megatron checkpoint as ``iter_0000000`` in ``folder``.

    Of files in today's zip form one tensor is in memory at a time; older ones are in memory as a whole.

    ``place`` is the checkpoint or the folder with its tracker. ``stated`` are settings of the model that the files lack
    or have wrong, ``version`` that of the order of queries, keys and values (None: the file's). ``progress`` is called
    with how many of how many parameters are done; ``function`` returns what else the checkpoint says of the model.

    Raises:
        CheckpointError: the source is incomplete, damaged, or of a model that megads does not have.
    """
    found = MegatronModel(place, stated, version=version)
    tensors = parameters_of(found.model)
    about = dict(found.about)
    with new_writer(folder, tensors, shape_of(found.model), about) as writer:
        for done, (name, cut) in enumerate(tensors.items(), start=1):
            writer.add(name, found.read(name, cut))
            progress(done, len(tensors))
        about.update(function())
    return Imported(writer.final, found.model, tuple(found.notes()))
