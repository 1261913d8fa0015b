"""Indices on disk: made once, found again by everything that decides them, mapped by whoever reads.

    <folder>/<kind>-<key>.safetensors

One file holds the arrays of one index, in the safetensors format, which many tools read; see
:mod:`megads.data.samples.index_cache.index_file`. The key is a hash of the recipe's description; the description
itself stands in the file and is compared when it is opened. The file is written under another name and
renamed when it is complete and on disk.

Opening an index reads its header only. :meth:`Cache.verify` reads all of it: the ranks of a run share that
out before the first one is used, see :mod:`megads.data.samples.index_cache.team`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from megads.config.schema import RunConfig
from megads.data.formats.files import ReadFile, Row
from megads.data.samples.index_cache.index_file import Damaged, IndexFile, write_index
from megads.data.samples.index_cache.lock import Lock, is_running
from megads.data.samples.recipe import Arrays, Columns, Recipe, Spec
from megads.errors import DataError

FORMAT = 1
"""Of the content; raise it when the same description makes other arrays."""

_POLL_S = (0.02, 1.0)  # between looks at a lock: the first, and the longest
_SAMPLES_PER_S = 5e6  # of a shuffle, during which nothing else of the process runs
_OLD_S = 86400.0  # of a file that somebody began to write
_LOG = logging.getLogger("megads")
_MARK = "mark"
_CURE = "set DATA_CACHE_PATH to a folder that can be written"


def _ignore(size: int) -> None:
    """Nobody wants to know how far it is."""


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
            return IndexFile(self.path(recipe), _describe(recipe)).arrays
        except (OSError, Damaged, DataError):
            return None

    def verify(self, recipe: Recipe, step: Callable[[int], None] = _ignore) -> bool:
        """Read all of an index and return whether it is what was written.

        One that is not is removed, with a line in the log, so that the next :meth:`get` builds it again.

        Raises:
            DataError: it cannot be removed.
        """
        path = self.path(recipe)
        try:
            IndexFile(path, _describe(recipe)).verify(step)
            return True
        except FileNotFoundError:
            return False
        except (Damaged, DataError) as error:
            reason = str(error).removeprefix(f"{path}: ")
        with self._guard(recipe):
            path.unlink(missing_ok=True)
        _LOG.warning("sample index %s: %s; rebuilding it", path, reason)
        return False

    def mark(self) -> str:
        """Leave a file that only those see who see this folder; return its name, empty if it cannot be written."""
        name = f".{_MARK}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            self._remove_left_behind(self.folder / _MARK)
            (self.folder / name).open("xb").close()
        except OSError:
            return ""
        return name

    def sees(self, mark: str) -> bool:
        """Return whether the mark of another process is in this folder."""
        return bool(mark) and os.path.lexists(self.folder / mark)

    def unmark(self, mark: str) -> None:
        """Remove a mark."""
        if mark:
            with contextlib.suppress(OSError):
                (self.folder / mark).unlink(missing_ok=True)

    def unlisted(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """Return those of ``recipes`` whose files are not in the folder; nothing is opened."""
        try:
            names = set(os.listdir(self.folder))
        except OSError:
            names = set()
        return [recipe for recipe in recipes if self.path(recipe).name not in names]

    def get(self, recipe: Recipe, step: Callable[[int], None] = _ignore) -> Arrays:
        """Return the arrays of an index, mapped read-only; it is built unless it is there.

        While it is built, ``step`` gets the bytes of each piece that is written.

        Processes that want the same index at once wait for the one that builds it.

        Raises:
            DataError: the folder cannot be written or is full, or the data are wrong.
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
                            self._build(recipe, path, step)
                    continue
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        return found

    def _build(self, recipe: Recipe, path: Path, step: Callable[[int], None]) -> None:
        """Write an index and give it its name."""
        self._say_why(recipe, path)
        self._remove_left_behind(path)
        temp = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with temp.open("xb", buffering=0) as file:
                write_index(file.fileno(), recipe.make(), _describe(recipe), step)
                os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)
            raise

    def _say_why(self, recipe: Recipe, path: Path) -> None:
        """Report what is wrong with a file that is there and is replaced."""
        try:
            IndexFile(path, _describe(recipe))
        except FileNotFoundError:
            return
        except (Damaged, DataError) as error:
            _LOG.warning("sample index %s: %s; rebuilding it", path, str(error).removeprefix(f"{path}: "))

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
            reason = "is not a folder" if error.errno == errno.EEXIST else os.strerror(error.errno or 0).lower()
            cure = f"free some space, or {_CURE}" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else _CURE
            raise DataError(f"sample indices in {self.folder}: {reason}; {cure}") from None


def unique(recipes: Sequence[Recipe], cache: Cache) -> list[Recipe]:
    """Return ``recipes`` without those that make the same index as another one."""
    return list({cache.path(recipe): recipe for recipe in recipes}.values())


def _describe(recipe: Recipe) -> str:
    content = {"format": FORMAT, "kind": recipe.kind, **recipe.description()}
    return json.dumps(content, sort_keys=True)
