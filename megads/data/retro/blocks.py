"""HDF5 files of a Retro project: rows cut into blocks, a file each, as Megatron-core lays them out.

A block of rows ``start..stop`` is ``<start>-<stop>.hdf5``, with as many digits as Megatron gives them. Files are
written under another name and renamed when they are on disk. Every dataset carries the CRC32 of its bytes in an
attribute that Megatron does not read, so a damaged file is found; one made by Megatron is checked by its shapes.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.files import ReadFile
from megads.errors import DataError, DependencyError
from megads.storage.durable import sync
from megads.storage.open_file import open_regular, write_cure

if TYPE_CHECKING:
    import h5py

CRC = "megads_crc32"
_ROWS = 1 << 16  # read at once for a checksum
_UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError)
"""What h5py raises for a file that is no HDF5, cut short, or of another layout."""

Shapes = Mapping[str, tuple[int | None, ...]]
"""Name of a dataset and its shape, None where any length will do. ``(None, c)`` also takes no rows at all, ``(0,)``."""


def load_h5py() -> Any:
    """Return the module h5py.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise DependencyError("Retro's files need h5py; pip install -e '.[retro]' in the checkout") from None
    return h5py


@dataclass(frozen=True)
class Block:
    """Rows ``start..stop`` and the file they are in."""

    start: int
    stop: int
    path: Path

    def __len__(self) -> int:
        return self.stop - self.start


def blocks_of(folder: Path, rows: int, size: int) -> list[Block]:
    """Return the blocks of ``rows`` rows, ``size`` in each but the last."""
    if rows < 1:
        return []
    # The same operations as upstream: at powers of ten the last bit of the quotient decides.
    digits = int(np.ceil(np.log(rows) / np.log(10)) + 1)
    return [
        Block(start, stop, folder / f"{start:0{digits}d}-{stop:0{digits}d}.hdf5")
        for start in range(0, rows, size)
        for stop in [min(rows, start + size)]
    ]


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as the datasets of an HDF5 file, whole or not at all."""

    def fill(file: h5py.File) -> None:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)

    write_file(path, fill)


def write_file(path: Path, fill: Callable[[h5py.File], None]) -> None:
    """Write an HDF5 file, whole or not at all: ``fill`` makes its datasets; their checksums are added.

    Raises:
        DataError: the folder cannot be written or is full.
    """
    h5py = load_h5py()
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with h5py.File(temporary, "w") as file:
                fill(file)
                for dataset in file.values():
                    dataset.attrs[CRC] = np.uint32(_checksum(dataset))
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        # What h5py says names its own calls and addresses.
        said = os.strerror(error.errno) if error.errno else error
        raise DataError(f"{path}: cannot write ({said}); {write_cure(error, 'use another folder')}") from None


def read_arrays(path: Path, shapes: Shapes) -> dict[str, npt.NDArray[Any]]:
    """Return datasets of a file, checked.

    Raises:
        DataError: the file is missing, damaged, or of another layout.
    """
    with _opened(path, shapes) as file:
        return {name: file[name][...] for name in shapes}


def problem_of(path: Path, shapes: Shapes) -> str:
    """Return what is wrong with a file, empty if nothing is; "missing" if it is not there."""
    if not os.path.lexists(path):
        return "missing"
    try:
        with load_h5py().File(path, "r") as file:
            return _find_problem(file, shapes)
    except _UNREADABLE as error:
        return f"cannot be read as HDF5 ({str(error)[:120]})"


def missing_blocks(blocks: Sequence[Block], shapes: Callable[[Block], Shapes]) -> tuple[list[Block], list[str]]:
    """Return the blocks that have to be made, and a line for each that was damaged and is removed now."""
    wanted, notes = [], []
    for block in blocks:
        problem = problem_of(block.path, shapes(block))
        if problem:
            wanted.append(block)
        if problem not in ("", "missing"):
            notes.append(f"{block.path}: {problem}; it is built again")
            block.path.unlink()
    return wanted, notes


class Table:
    """A dataset of rows, on disk: rows are read when they are looked up, and nothing is mapped.

    Raises:
        DataError: the file is missing, damaged, or of another layout. Checksums are not compared.
    """

    def __init__(self, path: Path, name: str, columns: int):
        self.path, self.columns = path, columns
        with _opened(path, {name: (None, columns)}, check_bytes=False) as file:
            dataset = file[name]
            self._count, self._dtype = int(dataset.shape[0]), dataset.dtype
            offset = dataset.id.get_offset()
            # Without an offset: compressed or in pieces, by another program; or empty.
            self._all = dataset[...].reshape(-1, columns) if offset is None else None
        self._file, self._start = ReadFile(path), offset or 0

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows ``start..stop``, [rows, columns].

        Raises:
            DataError: they do not exist, or the file was cut short since it was opened.
        """
        if not 0 <= start <= stop <= self._count:
            raise DataError(f"{self.path}: rows {start}..{stop} do not exist, there are {self._count}")
        if self._all is not None:
            found: npt.NDArray[Any] = self._all[start:stop]
            return found
        step = self.columns * self._dtype.itemsize
        return self._file.array(self._dtype, (stop - start) * self.columns, self._start + start * step).reshape(
            -1, self.columns
        )


def columns_of(path: Path, name: str) -> int:
    """Return the columns of a dataset; errors as :class:`Table`."""
    with _opened(path, {name: (None, None)}, check_bytes=False) as file:
        return int(file[name].shape[1])


class _opened:
    """A file that is open while its block runs, its datasets as expected."""

    def __init__(self, path: Path, shapes: Shapes, check_bytes: bool = True):
        self._path, self._shapes, self._check_bytes = path, shapes, check_bytes

    def __enter__(self) -> h5py.File:
        handle, _ = open_regular(
            self._path, missing=lambda: "run `megads retro build` first", expected="expected an HDF5 file"
        )
        os.close(handle)
        try:
            self._file = load_h5py().File(self._path, "r")
            problem = _find_problem(self._file, self._shapes, self._check_bytes)
        except _UNREADABLE as error:
            problem = f"cannot be read as HDF5 ({str(error)[:120]})"
        if problem:
            raise DataError(f"{self._path}: {problem}; remove it and rerun `megads retro build`")
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _find_problem(file: h5py.File, shapes: Shapes, check_bytes: bool = True) -> str:
    """Return the first problem of an open file; empty: none."""
    for name, shape in shapes.items():
        if name not in file:
            return f"has no dataset {name!r}"
        dataset = file[name]
        if not _fits(dataset.shape, shape):
            expected = " x ".join("any" if each is None else str(each) for each in shape)
            return f"{name} is {' x '.join(map(str, dataset.shape))}, expected {expected}"
        if check_bytes and CRC in dataset.attrs and int(dataset.attrs[CRC]) != _checksum(dataset):
            return f"{name} differs from its checksum"
    return ""


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if found == (0,) and shape[0] in (None, 0):
        return True  # numpy's array of an empty list, as upstream writes it
    return len(found) == len(shape) and all(each in (None, size) for each, size in zip(shape, found, strict=True))


def _checksum(dataset: h5py.Dataset) -> int:
    crc = 0
    for rows in _slices(dataset):
        crc = zlib.crc32(np.ascontiguousarray(rows).tobytes(), crc)
    return crc


def _slices(dataset: h5py.Dataset) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, dataset.shape[0] if dataset.shape else 0, _ROWS):
        yield dataset[start : start + _ROWS]
