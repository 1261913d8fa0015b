"""Indices on disk: made once, found again by everything that decides them, mapped by whoever reads.

    <folder>/<kind>-<key>.safetensors

One file holds the arrays of one index, in the safetensors format, which many tools read. The
key is a hash of the recipe's description; the description itself stands in the file, as
JSON, and is compared when it is opened. The file is written under another name and renamed
when it is whole and on disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megads.config.schema import RunConfig
from megads.data.indexed.files import ReadFile, Row
from megads.data.samples.lock import Lock, is_running
from megads.data.samples.recipe import Arrays, Columns, Making, Recipe, Spec
from megads.errors import DataError

FORMAT = 1
"""Of the content; raise it when the same description makes other arrays."""

_DTYPES = {"I16": "<i2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8"}
_NAMES = {np.dtype(name): code for code, name in _DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_MOST_HEADER = 1 << 26
_POLL_S = (0.02, 1.0)  # between looks at a lock: the first, and the longest
_SAMPLES_PER_S = 5e6  # of a shuffle, during which nothing else of the process runs
_OLD_S = 86400.0  # of a file that somebody began to write
_CURE = "set DATA_CACHE_PATH to a folder that can be written"


class Cache:
    """The indices in one folder.

    Args:
        folder: made when the first index is.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @staticmethod
    def of(run: RunConfig) -> Cache:
        """Return the cache of a run."""
        return Cache(Path(os.path.expanduser(run.data.cache_dir)).absolute() / "index")

    def path(self, recipe: Recipe) -> Path:
        """Return the file of an index, there or not."""
        return self.folder / f"{recipe.kind}-{hashlib.sha256(_describe(recipe).encode()).hexdigest()[:24]}.safetensors"

    def has(self, recipe: Recipe) -> bool:
        """Return whether an index is there, and whole."""
        return self._header(recipe) is not None

    def find(self, recipe: Recipe) -> Arrays | None:
        """Return the arrays of an index, mapped read-only; None when there is none, or it is not whole."""
        header = self._header(recipe)
        if header is None:
            return None
        whole = ReadFile(self.path(recipe)).map()
        return {
            spec.name: np.frombuffer(whole, spec.dtype, math.prod(spec.shape), start).reshape(spec.shape)
            for spec, start in header
        }

    def columns(self, recipe: Recipe) -> Columns:
        """Return the arrays of an index, to be read in pieces; it is built unless it is there. Errors as :meth:`get`.

        Nothing is mapped: what a rank looks up does not stay in its memory.
        """
        header = self._header(recipe)
        if header is None:
            self.get(recipe)
            header = self._header(recipe) or []
        file = ReadFile(self.path(recipe))
        return {spec.name: Row(file, spec.dtype.str, math.prod(spec.shape), start) for spec, start in header}

    def _header(self, recipe: Recipe) -> list[tuple[Spec, int]] | None:
        try:
            with self.path(recipe).open("rb") as file:
                return _read_header(file.fileno(), _describe(recipe))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def unlisted(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Return those of ``recipes`` whose files are not in the folder; nothing is opened."""
        try:
            names = set(os.listdir(self.folder))
        except OSError:
            names = set()
        return [recipe for recipe in recipes if self.path(recipe).name not in names]

    def get(self, recipe: Recipe) -> Arrays:
        """Return the arrays of an index, mapped read-only; it is built unless it is there.

        Processes that want the same index at once wait for the one that builds it.

        Raises:
            DataError: the folder can not be written or is full, or the data are wrong.
        """
        path = self.path(recipe)
        lock = Lock(path.with_suffix(".lock"), recipe.cost / _SAMPLES_PER_S)
        pause = _POLL_S[0]
        while (found := self.find(recipe)) is None:
            with self._guard(recipe):
                self.folder.mkdir(parents=True, exist_ok=True)
                if lock.take():
                    with lock:
                        # The one before may have finished in between.
                        if not self.has(recipe):
                            self._build(recipe, path)
                    continue
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        return found

    def _build(self, recipe: Recipe, path: Path) -> None:
        """Write an index and give it its name."""
        self._remove_left_behind(path)
        temp = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with temp.open("xb", buffering=0) as file:
                _write(file.fileno(), recipe.make(), _describe(recipe))
                os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)
            raise

    def _remove_left_behind(self, path: Path) -> None:
        """Remove what killed builders left: those of this host, and those of others after a day."""
        for left in self.folder.glob(f".{path.stem}.*.tmp"):
            *name, pid, _, _ = left.name.split(".")
            here = ".".join(name).endswith(f".{socket.gethostname()}")
            with contextlib.suppress(OSError):
                if (here and not is_running(int(pid))) or time.time() - left.stat().st_mtime > _OLD_S:
                    left.unlink()

    @contextlib.contextmanager
    def _guard(self, recipe: Recipe) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT and self.has(recipe):
                return  # somebody took this builder for dead, and has built it meanwhile
            reason = "is no folder" if error.errno == errno.EEXIST else os.strerror(error.errno or 0).lower()
            cure = f"free some space, or {_CURE}" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else _CURE
            raise DataError(f"sample indices in {self.folder}: {reason}; {cure}") from None


def unique(recipes: Sequence[Recipe], cache: Cache) -> list[Recipe]:
    """Return ``recipes`` without those that make the same index as another one."""
    return list({cache.path(recipe): recipe for recipe in recipes}.values())


def _describe(recipe: Recipe) -> str:
    content = {"format": FORMAT, "kind": recipe.kind, **recipe.description()}
    return json.dumps(content, sort_keys=True)


def _write(handle: int, making: Making, description: str) -> None:
    """Write header and arrays; refuse content that does not fill them exactly."""
    header: dict[str, Any] = {"__metadata__": {"megads": description}}
    total = 0
    for spec in making.specs:
        header[spec.name] = {
            "dtype": _NAMES[spec.dtype.newbyteorder("<")],
            "shape": spec.shape,
            "data_offsets": (total, total + spec.nbytes),
        }
        total += spec.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    _write_all(handle, memoryview(_LENGTH.pack(len(text)) + text))
    written = 0
    for block in making.blocks:
        content = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
        _write_all(handle, content.reshape(-1).view(np.uint8).data)
        written += content.nbytes
    if written != total:
        raise AssertionError(f"an index of {total} bytes got {written}")


def _write_all(handle: int, left: memoryview) -> None:
    while left:
        left = left[os.write(handle, left[: 1 << 30]) :]


def _read_header(handle: int, description: str) -> list[tuple[Spec, int]]:
    """Return the arrays of a file and where they start; ValueError, KeyError or TypeError when it is not whole."""
    size = os.fstat(handle).st_size
    (length,) = _LENGTH.unpack(os.pread(handle, _LENGTH.size, 0).ljust(_LENGTH.size, b"\0"))
    if not 0 < length <= min(size, _MOST_HEADER):
        raise ValueError(f"header of {length} bytes")
    header: Mapping[str, Any] = json.loads(os.pread(handle, length, _LENGTH.size))
    if header["__metadata__"]["megads"] != description:
        raise ValueError("another description")
    start = _LENGTH.size + length
    rows = {name: each for name, each in header.items() if name != "__metadata__"}
    if start + max(each["data_offsets"][1] for each in rows.values()) != size:
        raise ValueError("not whole")
    return [
        (Spec(name, np.dtype(_DTYPES[each["dtype"]]), tuple(each["shape"])), start + each["data_offsets"][0])
        for name, each in rows.items()
    ]
