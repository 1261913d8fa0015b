"""Write a checkpoint from whole tensors that come one after another: what was imported. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.atomic_folder import parents_of
from megads.checkpoint.format.blocks import Entry, write_file
from megads.checkpoint.format.commit import commit, only_writer, part_of
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.manifest import Manifest, file_name
from megads.checkpoint.format.runs import FileFacts, tell_of
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError
from megads.storage.open_file import write_cure

FILE_BYTES = 2**28
"""A file is written when its parameters have so many bytes; until then they are in memory."""

ONE_RANK = {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 0}


class Writer:
    """Takes the weights of a model, whole and in any order, and makes a checkpoint of iteration 0 of them.

    Args:
        folder: of checkpoints, in which ``iter_0000000`` is made.
        tensors: every parameter that will come, see ``megads.checkpoint.format.tensors``.
        model: settings that decide the shape, see ``megads.checkpoint.resume.compatibility.shape_of``.
        about: more to be kept, as the source.

    Raises:
        CheckpointError: there is a checkpoint of that name already, another command is making it, or
            the folder cannot be written.
    """

    def __init__(
        self, folder: Path, tensors: Mapping[str, ShardLayout], model: Mapping[str, Any], about: Mapping[str, Any]
    ):
        self.final = folder / checkpoint_name(0)
        self.tensors, self.model, self.about = tensors, model, about
        self.held: list[tuple[str, NDArray[np.float32]]] = []
        self.files: dict[int, FileFacts] = {}
        self._stack = ExitStack()
        try:
            self._begin()
        except BaseException as error:
            self._stack.close()
            if isinstance(error, OSError):
                raise CheckpointError(f"{folder}: {error.strerror}; use a folder that you can write") from None
            raise

    def _begin(self) -> None:
        """Make the folder to write to, and see to it that it goes in the end."""
        part = part_of(self.final)
        self._stack.enter_context(parents_of(part))
        self._stack.enter_context(only_writer(part))
        if self.final.exists():
            raise CheckpointError(f"{self.final}: a checkpoint already exists; use another folder, or remove it")
        self._stack.callback(shutil.rmtree, part, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()

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
            raise CheckpointError(f"{self.final}: {', '.join(missing[:5])} are missing; the source is incomplete")
        manifest = Manifest(
            iteration=0,
            kinds=("weight",),
            layout=ONE_RANK,
            model=self.model,
            tensors=self.tensors,
            files={},
            runs={},
            about=self.about,
        )
        try:
            commit(self.final, tell_of(manifest, self.files))
        except OSError as error:
            raise self._failed(error) from None
        self._stack.close()
        return self.final

    def abandon(self) -> None:
        """Leave nothing behind of what is not finished, no folder either that was made for it."""
        self._stack.close()

    def _flush(self) -> None:
        if not self.held:
            return
        rank = len(self.files)
        try:
            size, crc = write_file(
                part_of(self.final) / file_name(rank),
                [Entry.of(f"weight/{name}", tensor) for name, tensor in self.held],
            )
        except OSError as error:
            raise self._failed(error) from None
        self.files[rank] = FileFacts(size, crc, 0, tuple((name, 0, tensor.size) for name, tensor in self.held))
        self.held = []

    def _failed(self, error: OSError) -> CheckpointError:
        self.abandon()
        return CheckpointError(f"{self.final}: {error.strerror}; {write_cure(error, 'use another folder')}")
