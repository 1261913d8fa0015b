"""Read what ``torch.save`` wrote, whoever wrote it, without running anything of it.

Megatron's files hold tensors besides objects of its own: an ``argparse.Namespace``, enums,
generator states of numpy. A pickle names the class or function that makes each. Here none of these is
ever imported: torch's restricted reader makes tensors and plain values, and a
:class:`StandIn` keeps what a known program's object was made of. Any other name ends the reading.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from megads.errors import CheckpointError
from megads.storage.open_file import kind_of, open_binary

PROGRAMS = {
    *("megatron", "deepspeed", "apex", "amp_C", "transformer_engine", "transformer_engine_torch"),
    *("numpy", "torch", "fp16"),
}
"""Packages whose objects are found in such files; ``fp16`` was Megatron's in 2019."""

PLAIN = {
    *("argparse.Namespace", "types.SimpleNamespace", "enum.Enum", "signal.Signals", "_io.BytesIO"),
    *("pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib._local.PosixPath"),
    *("collections.deque", "datetime.datetime", "datetime.timedelta", "datetime.date"),
    *("builtins.getattr", "builtins.slice", "builtins.range", "builtins.object"),
    *("copyreg._reconstructor", "copy_reg._reconstructor"),
}
"""Further names found in them. Python 3.11 writes an enum as ``getattr(class, name)``."""

_NAMED = (re.compile(r"GLOBAL (\S+) was not an allowed"), re.compile(r"unsupported GLOBAL (\S+) whose module"))


class StandIn:
    """An object of a class that was not imported: ``arguments`` it was made of, and its attributes."""

    arguments: tuple[Any, ...] = ()

    def __new__(cls, *arguments: Any) -> StandIn:
        """Keep what the object would be made of."""
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)

    @property
    def last(self) -> Any:
        """The last argument: of an enum its value, or its name in the form of Python 3.11."""
        return self.arguments[-1] if self.arguments else None


def load(path: Path, *, are_tensors_verified: bool = True) -> Any:
    """Return the content of ``path``. Tensors of today's zip form are read from the file when they are used.

    Checksums of tensors are compared here, or by :class:`TensorSums` when ``are_tensors_verified`` is False.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or names code that is no part of a checkpoint.
    """
    if found := kind_of(path):
        raise CheckpointError(f"{path}: is {found}; use a file that you can read")
    known: dict[str, type[StandIn]] = {}
    while True:
        try:
            named = [(kind, name) for name, kind in known.items()]
            return load_plain(path, named, are_tensors_verified=are_tensors_verified)
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}; use a file that you can read") from None
        except Exception as error:  # a damaged pickle fails in any way there is
            name = _refused(error)
            if name is None or name in known:
                reason = str(error).strip().split("\n")[0].split(". ")[0][:200] or type(error).__name__
                raise CheckpointError(
                    f"{path}: not a readable file of torch.save ({reason}); it is damaged, or something else"
                ) from None
            if not _is_known(name):
                raise CheckpointError(
                    f"{path}: names {name}, which does not belong in a checkpoint; nothing was executed, do "
                    "not trust this file"
                ) from None
            known[name] = type("StandIn", (StandIn,), {"__module__": __name__})


def load_plain(path: Path, named: Sequence[Any] = (), *, are_tensors_verified: bool = True) -> Any:
    """Return the tensors and plain values of ``path``, and of what else it names only ``named``.

    ``named`` are classes and functions, each alone or with the name that the pickle gives it. See :func:`load`.

    Raises:
        CheckpointError: a member of its zip is not what was written.
        Exception: of any kind; a damaged pickle fails in any way there is.
    """
    if zipped := is_zip(path):
        verify_zip(path, are_tensors_verified=are_tensors_verified)
    with warnings.catch_warnings(), _nothing_but(named):
        warnings.simplefilter("ignore")  # of old pickles, before the error that says what it is
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


@contextmanager
def _nothing_but(named: Sequence[Any]) -> Iterator[None]:
    """Let torch make ``named``, and none of what a package that is loaded has told it to trust."""
    trusted = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals(list(named)):
            yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(trusted)


def _refused(error: Exception) -> str | None:
    """Return the global that torch's reader does not know, None if it failed for another reason."""
    found = next((match[1] for each in _NAMED if (match := each.search(str(error)))), None)
    # The reader leaves "builtins." out.
    return f"builtins.{found}" if found is not None and "." not in found else found


def _is_known(name: str) -> bool:
    return name in PLAIN or name.split(".")[0] in PROGRAMS


_THREADS = 4
_MOST_PACKED = 1 << 28  # bytes of a compressed member; tensors are not compressed
_PIECE = 1 << 22  # bytes read at a time
_verified: set[tuple[int, ...]] = set()  # files that this process has read: device, inode, bytes, time, with tensors
_TENSOR = re.compile(r"[^/]*/data/[^/]+")


def is_zip(path: Path) -> bool:
    """Return whether a file begins as a zip, which is what torch.save writes since 1.6; OSError if unreadable."""
    with open_binary(path) as file:
        return file.read(4) == b"PK\x03\x04"


def verify_zip(path: Path, *, are_tensors_verified: bool = True) -> None:
    """Read every member of a zip and compare its CRC-32, which torch never does; once, unless the file changes.

    With ``are_tensors_verified`` False the bytes of tensors are skipped.

    Raises:
        CheckpointError: one is not what was written; the line names it.
        OSError: the file cannot be read.
    """
    found = os.stat(path)
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, are_tensors_verified)
    if key in _verified:
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.file_size]
            if not are_tensors_verified:
                members = [member for member in members if not _TENSOR.fullmatch(member.filename)]
            # torch can be told to leave the sums out; then all of them are 0.
            if any(member.CRC for member in members):
                with ThreadPoolExecutor(_THREADS) as pool:
                    parts = [members[first::_THREADS] for first in range(_THREADS)]
                    for name in pool.map(lambda part: _first_damaged(path, part), parts):
                        if name:
                            raise CheckpointError(
                                f"{path}: member {name} changed since it was written, its CRC-32 differs; "
                                "restore a copy"
                            )
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"{path}: not a readable file of torch.save, its zip is damaged ({error!s:.60})"
        ) from None
    _verified.add(key)


def _first_damaged(path: Path, members: list[zipfile.ZipInfo]) -> str:
    """Return the first damaged member, empty if there is none.

    The archive is opened again: threads that share one disturb each other on Python 3.13.0.
    """
    with zipfile.ZipFile(path) as archive:
        return next(filter(None, (_damaged(archive, member) for member in members)), "")


def _damaged(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    """Return the name of a member that is not what was written, empty if it is."""
    if member.compress_type != zipfile.ZIP_STORED and member.file_size > _MOST_PACKED:
        return member.filename
    try:
        with archive.open(member) as stream:
            done = 0
            while piece := stream.read(_PIECE):
                done += len(piece)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError):
        return member.filename
    return "" if done == member.file_size else member.filename


class TensorSums:
    """Compares the CRC-32 of a file's tensors when they are used, each once.

    Torch does not say which member of the zip a tensor's bytes are. Damaged bytes have a sum that no member of their
    size has.

    Args:
        path: of the file, which :func:`load` has read; older forms than zip have no sums.
    """

    def __init__(self, path: Path):
        self.path = path
        self._sums: set[tuple[int, int]] = set()
        self._verified: set[int] = set()
        if is_zip(path):
            with zipfile.ZipFile(path) as archive:
                found = {(member.file_size, member.CRC) for member in archive.infolist()}
            if any(crc for _, crc in found):
                self._sums = found

    def verify(self, name: str, tensor: torch.Tensor) -> None:
        """Read the bytes that ``tensor`` and others of the file may share.

        Raises:
            CheckpointError: they changed since they were written; the line has the ``name``.
        """
        storage = tensor.untyped_storage()
        if not self._sums or not storage.nbytes() or storage.data_ptr() in self._verified:
            return
        stored = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        if (storage.nbytes(), zlib.crc32(stored.data)) not in self._sums:
            raise CheckpointError(
                f"{self.path}: {name} changed since it was written, its CRC-32 differs; restore a copy"
            )
        self._verified.add(storage.data_ptr())
