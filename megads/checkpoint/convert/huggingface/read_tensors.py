"""Read the tensors of a Hugging Face folder: safetensors or pytorch_model.bin, in one file or several.

Nothing of what is read is run: safetensors files are read here, without torch, and pickles by torch with
``weights_only``, which refuses everything but tensors and plain containers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.huggingface.dtypes import LONG, STORED, TYPES, unpack
from megads.checkpoint.convert.huggingface.write_shards import INDEX, SINGLE
from megads.checkpoint.format.blocks import MAX_HEADER
from megads.errors import CheckpointError
from megads.storage.open_file import open_binary
from megads.storage.reading import parse_json, read_bytes

PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
KINDS = {stored: LONG[dtype] for dtype, stored in TYPES.items()}
"""Type of the numbers in safetensors files -> its name in torch; these can be read."""

PIECE = 1 << 22
"""Bytes that are read at a time."""

_WORTH_A_SEEK = 1 << 16
"""Bytes of a row that are read alone, instead of the whole row."""


class Source:
    """The tensors of a Hugging Face folder, read when they are needed.

    Raises:
        CheckpointError: it holds no weights, not all of them, or what cannot be read.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        names, where = _files(folder)
        files = {name: _open(folder / name) for name in names}
        self._files: dict[str, _SafeTensors | _Pickle] = {}
        for name, file in files.items():
            for tensor in file.shapes:
                if tensor in self._files:
                    raise CheckpointError(f"{folder}: {tensor} is in two files, one of them {name}")
                self._files[tensor] = file
        lost = [tensor for tensor in where if tensor not in self._files]
        if lost:
            raise CheckpointError(f"{folder}: {lost[0]} is not in {where[lost[0]]}, where the index says it is")
        self.shapes = {tensor: file.shapes[tensor] for tensor, file in self._files.items()}
        self.kinds = {tensor: file.kinds[tensor] for tensor, file in self._files.items()}

    def fill(self, out: NDArray[np.float32], name: str, row: int = 0, column: int = 0) -> None:
        """Read the rectangle of a tensor that begins at ``(row, column)`` and has the shape of the matrix ``out``.

        A vector is one column. Besides ``out`` at most :data:`PIECE` bytes of numbers are in memory.

        Raises:
            CheckpointError: the file cannot be read.
        """
        self._files[name].fill(out, name, row, column)

    def have_equal_rows(self, name: str, other: str) -> bool:
        """Return whether two matrices, or two vectors, are the same; a part of each is in memory at a time."""
        if self.shapes[name] != self.shapes[other]:
            return False
        rows, width = (*self.shapes[name], 1)[:2]
        step = max(1, PIECE // (4 * width))
        for row in range(0, rows, step):
            one, two = (self._rows(each, row, min(rows, row + step)) for each in (name, other))
            if not np.array_equal(one, two, equal_nan=True):
                return False
        return True

    def _rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        out = np.empty((last - first, (*self.shapes[name], 1)[1]), np.float32)
        self.fill(out, name, first)
        return out


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; CheckpointError when it does not exist or holds something else."""
    try:
        content = parse_json(read_bytes(path))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return content


def _files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the names of the files, and of every tensor the file in which an index says it is."""
    for single, index in ((SINGLE, INDEX), (PICKLE, PICKLE_INDEX)):
        if (folder / index).is_file():
            where = read_json(folder / index).get("weight_map")
            if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
                raise CheckpointError(f"{folder / index}: has no weight_map of tensors and their files")
            names = sorted(set(where.values()))
            strange = [name for name in names if Path(name).name != name]
            if strange:
                raise CheckpointError(f"{folder / index}: names {strange[0]!r}, which is not a file of the folder")
            missing = [name for name in names if not (folder / name).is_file()]
            if missing:
                raise CheckpointError(
                    f"{folder}: {missing[0]} is missing, {len(missing)} of {len(names)} files are; fetch them again"
                )
            return names, where
        if (folder / single).is_file():
            return [single], {}
    raise CheckpointError(f"{folder}: has no weights; expected {SINGLE} or {INDEX} and its files, or {PICKLE} likewise")


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of one safetensors file.

    Raises:
        CheckpointError: it does not exist, or is none.
    """
    if not path.is_file():
        pickled = path.with_suffix(".bin")
        what = f"{pickled.name} is not read; save it as safetensors" if pickled.is_file() else "No such file"
        raise CheckpointError(f"{path}: {what}")
    found = _open(path)
    assert isinstance(found, _SafeTensors)
    return found


def _open(path: Path) -> _SafeTensors | _Pickle:
    try:
        refuse_pointer(path)
        return _SafeTensors(path) if path.suffix == ".safetensors" else _Pickle(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


class _SafeTensors:
    """A safetensors file: eight bytes of length, a header in JSON, the tensors."""

    def __init__(self, path: Path):
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kinds: dict[str, str] = {}
        self._at: dict[str, tuple[int, str]] = {}
        size = os.path.getsize(path)
        try:
            with open_binary(path) as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(size - 8, MAX_HEADER):
                    raise ValueError(f"its header of {length} bytes is longer than the file, or than any")
                header = parse_json(file.read(length))
            for name, facts in header.items():
                if name != "__metadata__":
                    self._add(name, facts, 8 + length, size)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path}: is not a valid safetensors file ({error})") from None

    def _add(self, name: str, facts: Mapping[str, Any], start: int, size: int) -> None:
        kind, shape, (first, last) = facts["dtype"], tuple(facts["shape"]), facts["data_offsets"]
        if not all(type(each) is int and each >= 0 for each in (*shape, first, last)):
            raise ValueError(f"{name} has a shape or place that is none")
        if start + last > size:
            raise ValueError(f"{name} ends after the end of the file")
        if name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
            return  # numbers from 0 on, or zeros, which old versions saved
        if kind not in KINDS:
            raise CheckpointError(
                f"{self.path}: {name} is of type {kind}; weights of {', '.join(KINDS)} can be read, "
                "quantised ones must be converted first"
            )
        if last - first != math.prod(shape) * STORED[kind].itemsize:
            raise ValueError(f"{name} of shape {list(shape)} has {last - first} bytes")
        self.shapes[name], self.kinds[name], self._at[name] = shape, KINDS[kind], (start + first, kind)

    def fill(self, out: NDArray[np.float32], name: str, row: int, column: int) -> None:
        at, kind = self._at[name]
        width, stored = math.prod(self.shapes[name][1:]), STORED[kind]
        rows, wide = out.shape
        # Few columns of many: rows are read one by one, and the others stay on disk.
        is_narrow = wide * stored.itemsize >= _WORTH_A_SEEK and wide < width
        step = 1 if is_narrow else max(1, PIECE // (width * stored.itemsize))
        try:
            with open_binary(self.path) as file:
                for first in range(0, rows, step):
                    count = min(step, rows - first)
                    skipped = column if is_narrow else 0
                    file.seek(at + ((row + first) * width + skipped) * stored.itemsize)
                    wanted = wide if is_narrow else count * width
                    read = np.fromfile(file, stored, wanted)
                    if read.size != wanted:
                        raise CheckpointError(f"{self.path}: ends within {name}")
                    read = read.reshape(count, -1)
                    out[first : first + count] = unpack(read if is_narrow else read[:, column : column + wide], kind)
        except OSError as error:
            raise CheckpointError(f"{self.path}: {error.strerror}") from None


Tensors = _SafeTensors
"""Of one file: ``shapes`` by name, ``path``, and ``fill``."""


class _Pickle:
    """A file of torch.save; its tensors stay on disk until they are read."""

    def __init__(self, path: Path):
        import torch

        from megads.checkpoint.convert.torch_files.read import load_plain

        self.path = path
        try:
            self._tensors = load_plain(path)
        except (OSError, CheckpointError):
            raise
        except Exception as error:  # UnpicklingError, RuntimeError, EOFError ... by what is wrong with it
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
            raise CheckpointError(
                f"{path}: torch cannot read it as weights alone ({reason}); nothing of it was run; "
                "use a safetensors file"
            ) from None
        if not isinstance(self._tensors, dict) or not all(
            isinstance(each, torch.Tensor) for each in self._tensors.values()
        ):
            raise CheckpointError(f"{path}: holds more than named tensors; expected the state_dict of a model")
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        self.kinds: dict[str, str] = {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self._tensors.items()
        }

    def fill(self, out: NDArray[np.float32], name: str, row: int, column: int) -> None:
        import torch

        if self.kinds[name] not in LONG.values():
            raise CheckpointError(
                f"{self.path}: {name} is of type {self.kinds[name]}; can read {', '.join(LONG.values())}"
            )
        rows, wide = out.shape
        matrix = self._tensors[name].detach().reshape(self.shapes[name][0], -1)
        torch.from_numpy(out).copy_(matrix[row : row + rows, column : column + wide])


_POINTER = b"version https://git-lfs"


def refuse_pointer(path: Path) -> None:
    """Raise CheckpointError for a pointer of Git LFS, whose file was not fetched; OSError if it cannot be read."""
    with open_binary(path) as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(f"{path}: is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`")
