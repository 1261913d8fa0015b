"""Write a checkpoint from whole tensors that come one after another: what was imported. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.blocks import Entry, write_file
from megads.checkpoint.format.commit import commit, new_checkpoint, part_of
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.manifest import File, Manifest, file_name
from megads.checkpoint.format.runs import Contents, with_files
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError

FILE_BYTES = 2**28
"""A file is written when its parameters have so many bytes; until then they are in memory."""

ONE_RANK = {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 0}


@contextmanager
def new_writer(
    folder: Path, tensors: Mapping[str, ShardLayout], model: Mapping[str, Any], about: Mapping[str, Any]
) -> Iterator[Writer]:
    """Make a checkpoint ``iter_0000000`` in ``folder`` of the tensors that are added; nothing is left after an error.

    ``tensors`` are all parameters that will come, ``model`` the settings that decide their shape (``shape_of`` of
    ``megads.checkpoint.resume.compatibility``), ``about`` what else is stored, as the source.

    Raises:
        CheckpointError: it already exists, another command is making it, a parameter is missing, or
            the folder cannot be written.
    """
    final = folder / checkpoint_name(0)
    with new_checkpoint(final):
        writer = Writer(final, tensors)
        yield writer
        writer.flush()
        written = {name for _, contents in writer.files.values() for name, *_ in contents}
        if missing := [name for name in tensors if name not in written]:
            raise CheckpointError(f"{final}: {', '.join(missing[:5])} are missing; the source is incomplete")
        manifest = Manifest(0, ("weight",), ONE_RANK, model, tensors, files={}, runs={}, about=about)
        commit(final, with_files(manifest, writer.files))


class Writer:
    """Takes the weights of a model, whole and in any order; see :func:`new_writer`."""

    def __init__(self, final: Path, tensors: Mapping[str, ShardLayout]):
        self.final, self.tensors = final, tensors
        self.files: dict[int, tuple[File, Contents]] = {}
        self._waiting: list[tuple[str, NDArray[np.float32]]] = []

    def add(self, name: str, tensor: NDArray[np.float32]) -> None:
        """Take a whole parameter, float32, with padding rows; CheckpointError for a name or shape of another model."""
        if name not in self.tensors or self.tensors[name].shape != tensor.shape:
            wanted = list(self.tensors[name].shape) if name in self.tensors else "no such parameter"
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, the model has {wanted}")
        self._waiting.append((name, np.asarray(tensor, np.float32)))
        if sum(each.nbytes for _, each in self._waiting) >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory to a file."""
        if not self._waiting:
            return
        rank, entries = len(self.files), [Entry.of(f"weight/{name}", tensor) for name, tensor in self._waiting]
        file = File(*write_file(part_of(self.final) / file_name(rank), entries), tensor=0)
        self.files[rank] = (file, [(name, 0, tensor.size) for name, tensor in self._waiting])
        self._waiting = []


def common_dtype(dtypes: Iterable[object]) -> str:
    """Return torch's name of the one type that holds all weights without rounding: of several, float32."""
    names = {str(each).removeprefix("torch.") for each in dtypes}
    return names.pop() if len(names) == 1 else "float32"
