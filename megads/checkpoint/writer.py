"""Write a checkpoint from whole tensors that come one after another: what was imported. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.blocks import Entry, write_file
from megads.checkpoint.commit import commit, part_of
from megads.checkpoint.cut import Cut
from megads.checkpoint.layout import checkpoint_name, file_name
from megads.checkpoint.manifest import FileFacts, Manifest
from megads.errors import CheckpointError

FILE_BYTES = 2**30
ONE_RANK = {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 0}


class Writer:
    """Takes the weights of a model, whole and in any order, and makes a checkpoint of iteration 0 of them.

    Args:
        folder: of checkpoints, in which ``iter_0000000`` is made.
        tensors: every parameter that will come, see ``megads.checkpoint.tensors``.
        model: settings that decide the shape, see ``megads.checkpoint.match.shape_of``.
        about: more to be kept, as the source.

    Raises:
        CheckpointError: there is a checkpoint of that name already, or the folder can not be written.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Cut], model: Mapping[str, Any], about: Mapping[str, Any]):
        self.final = folder / checkpoint_name(0)
        self.tensors, self.model, self.about = tensors, model, about
        self.held: list[tuple[str, NDArray[np.float32]]] = []
        self.files: dict[str, FileFacts] = {}
        if self.final.exists():
            raise CheckpointError(f"{self.final}: there is a checkpoint already; give another folder, or remove it")
        part = part_of(self.final)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        except OSError as error:
            raise CheckpointError(f"{part}: {error.strerror}; give a folder that you can write") from None

    def add(self, name: str, tensor: NDArray[np.float32]) -> None:
        """Take a whole parameter, in its own shape, float32; vocabularies with their padding rows.

        Raises:
            CheckpointError: it is not of the model, or has another shape.
        """
        if name not in self.tensors or self.tensors[name].shape != tensor.shape:
            wanted = list(self.tensors[name].shape) if name in self.tensors else "no such parameter"
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, the model has {wanted}")
        self.held.append((name, np.asarray(tensor, np.float32)))
        if sum(each.nbytes for _, each in self.held) >= FILE_BYTES:
            self._flush()

    def finish(self) -> Path:
        """Make the checkpoint visible and return its path.

        Raises:
            CheckpointError: a parameter is missing, or the disk is full.
        """
        self._flush()
        held = {name for facts in self.files.values() for name, *_ in facts.pieces}
        missing = [name for name in self.tensors if name not in held]
        if missing:
            self.abandon()
            raise CheckpointError(f"{self.final}: {', '.join(missing[:5])} did not come; the source is not whole")
        manifest = Manifest(
            iteration=0,
            kinds=("weight",),
            layout=ONE_RANK,
            model=self.model,
            tensors=self.tensors,
            files=self.files,
            about=self.about,
        )
        try:
            commit(self.final, manifest)
        except OSError as error:
            raise self._failed(error) from None
        return self.final

    def abandon(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(part_of(self.final), ignore_errors=True)

    def _flush(self) -> None:
        if not self.held:
            return
        name = file_name(len(self.files))
        try:
            size, crc = write_file(
                part_of(self.final) / name, [Entry.of(f"weight/{name}", tensor) for name, tensor in self.held]
            )
        except OSError as error:
            raise self._failed(error) from None
        self.files[name] = FileFacts(size, crc, 0, tuple((name, 0, tensor.size) for name, tensor in self.held))
        self.held = []

    def _failed(self, error: OSError) -> CheckpointError:
        self.abandon()
        return CheckpointError(f"{self.final}: {error.strerror}; free some space or give another folder")
