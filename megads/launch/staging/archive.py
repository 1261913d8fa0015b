"""One archive of what ranks import: made once, named by its content. Only the host that makes it reads the small files.

    <folder>/<sha256 of the content>.tar    env/, base/ and checkout/, as they are needed
    <folder>/<sha256 of the listing>.json   which archive has the files of this listing

Names, sizes and times of all files are the listing: while it stays the same, nothing is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from megads.errors import DataError, LaunchError
from megads.storage.file_lock import take_lock
from megads.storage.open_file import write_cure
from megads.storage.reading import parse_json
from megads.storage.resources import is_shipped

ENV, BASE, CHECKOUT = "env", "base", "checkout"
"""Folders of an archive: the environment, the Python it was made with, megads."""

NOTE = "stage.json"
"""File of an archive that says where its folders were."""

OF_CHECKOUT = ("megads", "envs")
"""What ranks need of a checkout."""

SYSTEM = ("/", "/usr", "/usr/local")
"""Prefixes of a Python that every host has."""

NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "ceph", "glusterfs", "afs", "panfs", "wekafs", "pvfs2"),
    *("orangefs", "dvs", "cvmfs2", "smb3", "cifs", "9p", "fuse.sshfs", "fuse.copper"),
)
"""Types of file systems that hosts share, as /proc/mounts names them."""

KEPT = 3
"""Archives that stay in the folder; older ones are removed when another is made."""

_SKIPPED = (".git", ".nfs")
_READ = 1 << 20


@dataclass(frozen=True)
class Source:
    """A folder of the archive, and where its files are."""

    name: str
    path: Path
    only: tuple[str, ...] = ()  # entries of the folder; empty: all


@dataclass(frozen=True)
class Archive:
    """An archive on disk."""

    path: Path
    digest: str
    num_bytes: int  # of the archive
    num_files: int
    python: str  # of ranks, in the archive's folder; empty: the Python stays what it is
    has_checkout: bool
    is_new: bool = False

    @property
    def name(self) -> str:
        """Return what its folder is called on every host: short, for kernels bound the first line of a script."""
        return self.digest[:16]


@dataclass(frozen=True)
class _Entry:
    name: str  # in the archive
    path: str
    mode: int
    size: int
    mtime_ns: int
    link: str  # target of a symbolic link; empty: a file


def sources_of(python: str, root: Path, *, with_base: bool | None = None) -> list[Source]:
    """Return what the ranks that ``python`` runs import: its environment, what that was made with, and megads.

    A Python of the operating system is on every host. ``with_base`` says whether the Python that a
    virtual environment was made with is staged, too; None: if it is on a file system that hosts share.

    Raises:
        LaunchError: ``python`` does not run.
    """
    words = [python, "-I", "-c", "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        prefix, base = (Path(text) for text in parse_json(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise LaunchError(f"{python}: does not run ({error}); MEGADS_PYTHON should be a Python") from None
    found = [] if str(prefix) in SYSTEM else [Source(ENV, prefix)]
    wants_base = file_system_of(base) in NETWORK if with_base is None else with_base
    if found and base != prefix and str(base) not in SYSTEM and wants_base:
        found.append(Source(BASE, base))
    if root.name not in ("site-packages", "dist-packages") and not is_shipped(root):
        found.append(Source(CHECKOUT, root, OF_CHECKOUT))
    return found


def file_system_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the file system that ``path`` is on, as ``lustre``; empty where the system does not say."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf8", errors="replace").splitlines():
            _, place, found, *_ = line.split()
            place = place.replace("\\040", " ")
            inside = str(path) == place or f"{path}/".startswith(f"{place.rstrip('/')}/")
            if inside and len(place) >= len(best):
                best, kind = place, found
    return kind


def make_archive(sources: Sequence[Source], folder: Path) -> Archive:
    """Return the archive of ``sources``, which is made unless ``folder`` has it. One of several processes makes it.

    Raises:
        DataError: a file cannot be read or changes meanwhile, or the folder cannot be written.
    """
    entries = list(_entries(sources))
    if not any(entry.link == "" for entry in entries):
        raise DataError("nothing to stage: the Python is the system's, and megads is installed in it")
    note = json.dumps({source.name: str(source.path) for source in sources}, sort_keys=True).encode()
    listing = hashlib.sha256(note)
    for entry in entries:
        listing.update(json.dumps(list(asdict(entry).values())).encode())
    known = folder / f"{listing.hexdigest()[:32]}.json"
    with _one_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = take_lock(folder / f"{known.stem}.lock", wait_s=math.inf, temporary=True)
        with lock or contextlib.nullcontext():
            if found := _known_archive(known, sources):
                os.utime(found.path)
                return found
            return _make(entries, note, sources, known)


def _python_in(sources: Sequence[Source]) -> str:
    return f"{ENV}/bin/python" if any(source.name == ENV for source in sources) else ""


def _known_archive(known: Path, sources: Sequence[Source]) -> Archive | None:
    """Return the archive that a listing stands for, None where there is none or it has another size."""
    try:
        about = parse_json(known.read_text(encoding="utf8"))
        path = known.with_name(f"{about['digest']}.tar")
        if path.stat().st_size != about["num_bytes"]:
            return None
        return Archive(
            path, about["digest"], about["num_bytes"], about["num_files"], _python_in(sources), _has_checkout(sources)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _has_checkout(sources: Sequence[Source]) -> bool:
    return any(source.name == CHECKOUT for source in sources)


def _entries(sources: Sequence[Source]) -> Iterator[_Entry]:
    """Yield files and links of all sources, in an order that does not depend on the file system."""
    for source in sources:
        tops = [source.path / name for name in source.only] or [source.path]
        for top in tops:
            if not top.is_dir():
                raise DataError(f"{top}: no such folder; it should hold what ranks import")
            yield from _entries_below(source, top, sources)


def _entries_below(source: Source, top: Path, sources: Sequence[Source]) -> Iterator[_Entry]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {str(error.strerror).lower()}")

    for folder, names, files in os.walk(top, onerror=refuse):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links]):
            path = os.path.join(folder, name)
            if name.startswith(_SKIPPED[1]):
                continue
            about = os.lstat(path)
            place = f"{source.name}/{os.path.relpath(path, source.path)}"
            if stat.S_ISLNK(about.st_mode):
                yield _Entry(place, path, 0o777, 0, 0, _target(path, place, sources))
            elif stat.S_ISREG(about.st_mode):
                yield _Entry(place, path, stat.S_IMODE(about.st_mode), about.st_size, about.st_mtime_ns, "")


def _target(path: str, place: str, sources: Sequence[Source]) -> str:
    """Return where a link leads from its place in the archive: what is in the archive, too, is reached there."""
    target = os.readlink(path)
    if not os.path.isabs(target):
        return target
    for source in sources:
        if not source.only and f"{target}/".startswith(f"{source.path}/"):
            inside = os.path.join(source.name, os.path.relpath(target, source.path))
            return os.path.relpath(inside, os.path.dirname(place))
    return target


def _make(entries: Sequence[_Entry], note: bytes, sources: Sequence[Source], known: Path) -> Archive:
    folder, made = known.parent, _Hashing(known.with_name(f".{uuid.uuid4().hex[:12]}.tmp"))
    try:
        with made, tarfile.open(fileobj=made, mode="w|", format=tarfile.PAX_FORMAT, copybufsize=_READ) as tar:  # type: ignore[call-overload]
            _add(tar, NOTE, 0o644, len(note), 0, BytesIO(note))
            for entry in entries:
                if entry.link:
                    link = tarfile.TarInfo(entry.name)
                    link.type, link.linkname, link.mode = tarfile.SYMTYPE, entry.link, entry.mode
                    tar.addfile(link)
                    continue
                with open(entry.path, "rb") as file:
                    _add(tar, entry.name, entry.mode, entry.size, entry.mtime_ns // 10**9, file)
        num_files = sum(1 for entry in entries if not entry.link)
        digest, num_bytes = made.digest(), made.num_bytes
        made.path.replace(folder / f"{digest}.tar")
    except BaseException:
        made.path.unlink(missing_ok=True)
        raise
    about = {"digest": digest, "num_bytes": num_bytes, "num_files": num_files}
    temporary = known.with_name(f".{uuid.uuid4().hex[:12]}.tmp")
    temporary.write_text(json.dumps(about), encoding="utf8")
    temporary.replace(known)
    _remove_old(folder)
    path, python = folder / f"{digest}.tar", _python_in(sources)
    return Archive(path, digest, num_bytes, num_files, python, _has_checkout(sources), is_new=True)


def _add(tar: tarfile.TarFile, name: str, mode: int, size: int, mtime: int, file: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.size, member.mtime = mode, size, mtime  # compiled files name the time of their source
    try:
        tar.addfile(member, file)
    except OSError as error:
        if "unexpected end of data" not in str(error):
            raise
        raise DataError(f"{name}: became shorter while it was read; stage when nobody installs packages") from None


def _remove_old(folder: Path) -> None:
    """Remove archives beyond the newest ones, and what a killed process left of one."""
    archives = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    stale = [path for path in folder.glob(".*.tmp") if time.time() - path.stat().st_mtime > 86400]
    for path in (*archives[KEPT:], *stale):
        path.unlink(missing_ok=True)


class _Hashing:
    """A file to write whose content is hashed on the way."""

    def __init__(self, path: Path):
        self.path, self.num_bytes, self._hash = path, 0, hashlib.sha256()

    def __enter__(self) -> _Hashing:
        self._file = self.path.open("xb", buffering=_READ)
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        self.num_bytes += len(content)
        return self._file.write(content)

    def digest(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        cure = write_cure(error, "use another folder (--archives DIR)")
        raise DataError(f"{where}: {str(error.strerror or error).lower()}; {cure}") from None
