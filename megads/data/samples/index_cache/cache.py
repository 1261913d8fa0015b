"""Indices on disk: made once, found again by everything that decides them, mapped by whoever reads.

    <folder>/<kind>-<key>.safetensors

One file holds the arrays of one index, in the safetensors format, which many tools read; see
:mod:`megads.data.samples.index_cache.index_file`. The key is a hash of the recipe's description; the description
itself stands in the file and is compared when it is opened. The file is written under another name and
renamed when it is complete and on disk.

Opening an index reads its header only. :meth:`Cache.verify` reads all of it: the ranks of a run share that
out before the first one is used, see :mod:`megads.data.samples.index_cache.build`.
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

from megads.config.schema import RunConfig
from megads.data.formats.files import ReadFile, Row
from megads.data.samples.index_cache.index_file import Damaged, IndexFile, write_index
from megads.data.samples.recipe import Columns, Recipe
from megads.errors import DataError
from megads.storage.file_lock import take_lock
from megads.storage.open_file import write_cure

FORMAT = 1
"""Of the content; raise it when the same description makes other arrays."""

_POLL_S = (0.02, 1.0)  # between looks at a lock: the first, and the longest
_SAMPLES_PER_S = 5e6  # of a shuffle, on a slow host
_PATIENCE_S = 600.0
"""How long a process waits for another builder, beyond the time of the shuffle. NFS 3 keeps the lock of a host that
died. Nothing depends on the lock: a file is renamed into place whole, so two builders make the same file twice."""

_OLD_S = 86400.0  # of a file that somebody began to write
_LOG = logging.getLogger("megads")
_MARK = "mark"
_CURE = "set DATA_CACHE_PATH to a folder that can be written"


class Cache:
    """The indices in one folder, which is made when the first index is."""

    def __init__(self, folder: Path):
        self.folder = folder

    @staticmethod
    def of(run: RunConfig) -> Cache:
        """Return the cache of a run."""
        return Cache(Path(os.path.expanduser(run.data.cache_dir)).absolute() / "index")

    def path(self, recipe: Recipe) -> Path:
        """Return the file of an index, there or not."""
        return self.folder / f"{recipe.kind}-{hashlib.sha256(_describe(recipe).encode()).hexdigest()[:24]}.safetensors"

    def find(self, recipe: Recipe) -> dict[str, Row] | None:
        """Return the arrays of an index, to be read in pieces; None when there is none, or it is not valid.

        Nothing is mapped: what a rank looks up does not stay in its memory.
        """
        path = self.path(recipe)
        try:
            header = IndexFile(path, _describe(recipe)).arrays
            file = ReadFile(path)
        except (OSError, Damaged, DataError):
            return None
        return {spec.name: Row(file, spec.dtype.str, math.prod(spec.shape), start) for spec, start in header}

    def verify(self, recipe: Recipe, step: Callable[[int], None] = lambda size: None) -> bool:
        """Read all of an index and return whether it is what was written.

        One that is not is removed, with a line in the log, so that the next :meth:`get` builds it again.

        Raises:
            DataError: it cannot be removed.
        """
        if problem := self._problem(recipe, step):
            with self._guard(recipe):
                self.path(recipe).unlink(missing_ok=True)
            _LOG.warning("sample index %s: %s; rebuilding it", self.path(recipe), problem)
        return problem == ""

    def _problem(self, recipe: Recipe, step: Callable[[int], None] | None) -> str | None:
        """Return what is wrong with the file of an index, None when it is not there; without ``step`` of its header."""
        path = self.path(recipe)
        try:
            file = IndexFile(path, _describe(recipe))
            if step:
                file.verify(step)
        except FileNotFoundError:
            return None
        except (Damaged, DataError) as error:
            return str(error).removeprefix(f"{path}: ")
        return ""

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

    def get(self, recipe: Recipe, step: Callable[[int], None] = lambda size: None) -> Columns:
        """Return the arrays of an index, to be read in pieces; it is built unless it is there.

        While it is built, ``step`` gets the bytes of each piece that is written.

        Processes that want the same index at once wait for the one that builds it.

        Raises:
            DataError: the folder cannot be written or is full, or the data are wrong.
        """
        path = self.path(recipe)
        until = time.monotonic() + _PATIENCE_S + recipe.cost / _SAMPLES_PER_S
        pause = _POLL_S[0]
        while (found := self.find(recipe)) is None:
            with self._guard(recipe):
                self.folder.mkdir(parents=True, exist_ok=True)
                lock = take_lock(path.with_suffix(".lock"), temporary=True)
                if lock or time.monotonic() > until:
                    with lock or contextlib.nullcontext():
                        # The one before may have finished in between.
                        if self.find(recipe) is None:
                            self._build(recipe, path, step)
                    continue
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        return found

    def _build(self, recipe: Recipe, path: Path, step: Callable[[int], None]) -> None:
        """Write an index and give it its name."""
        if problem := self._problem(recipe, None):
            _LOG.warning("sample index %s: %s; rebuilding it", path, problem)
        self._remove_left_behind(path)
        temp = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with temp.open("xb", buffering=0) as file:
                write_index(file.fileno(), recipe.make(), _describe(recipe), step)
                os.fsync(file.fileno())
            temp.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)

    def _remove_left_behind(self, path: Path) -> None:
        """Remove what killed builders left: those of this host, and those of others after a day."""
        for left in self.folder.glob(f".{path.stem}.*.tmp"):
            import psutil  # late: its import takes as long as a small index

            *name, pid, _, _ = left.name.split(".")
            here = ".".join(name).endswith(f".{socket.gethostname()}")
            with contextlib.suppress(OSError):
                if (here and not psutil.pid_exists(int(pid))) or time.time() - left.stat().st_mtime > _OLD_S:
                    left.unlink()

    @contextlib.contextmanager
    def _guard(self, recipe: Recipe) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT and self.find(recipe) is not None:
                return  # somebody took this builder for dead, and has built it meanwhile
            reason = "is not a folder" if error.errno == errno.EEXIST else os.strerror(error.errno or 0).lower()
            raise DataError(f"sample indices in {self.folder}: {reason}; {write_cure(error, _CURE)}") from None


def unique(recipes: Sequence[Recipe], cache: Cache) -> list[Recipe]:
    """Return ``recipes`` without those that make the same index as another one."""
    return list({cache.path(recipe): recipe for recipe in recipes}.values())


def _describe(recipe: Recipe) -> str:
    content = {"format": FORMAT, "kind": recipe.kind, **recipe.description()}
    return json.dumps(content, sort_keys=True)
