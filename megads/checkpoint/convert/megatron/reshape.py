"""Megatron's files for another layout, as Megatron's own tools write them: weights only, a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from megads.checkpoint.convert.huggingface.dtypes import SHORT
from megads.checkpoint.convert.megatron.export import export_megatron
from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.convert.megatron.model import MegatronModel
from megads.checkpoint.convert.megatron.target import Target, check_target
from megads.checkpoint.format.reader import Reader
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError


def reshape_megatron(
    source: Path,
    folder: Path,
    target: Target,
    check: Callable[[ModelConfig, int, int], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, tuple[str, ...]]:
    """Write the weights of Megatron's files ``source`` to the new ``folder``; return the checkpoint, and lines to show.

    The type of the weights stays; names are legacy ones, which is what these tools read. Next to ``folder`` the
    weights lie once more in float32 while it works.

    Args:
        source: a checkpoint of Megatron-LM, or the folder with its tracker.
        folder: a new one.
        target: the layout.
        check: is called with the model and its degrees, TP and PP, before anything is written.
        progress: is called with how many of how many tensors are done.

    Raises:
        CheckpointError: the source is incomplete, damaged, or of a model that megads or Megatron does not have.
    """
    found = MegatronModel(source, are_tensors_verified=False)
    stages = {chunk[0][0] for chunk in found.source.chunks}
    check(found.model, found.source.tensor, len(stages))
    target = replace(target, dtype=SHORT.get(str(found.about["torch_dtype"]), "fp32"))
    check_target(found.model, target)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            done = import_megatron(source, Path(place) / "whole")
            with Reader(done.path) as reader:
                made = export_megatron(reader, folder, target, progress=progress)
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}; use a folder that you can write") from None
    return made, done.notes
