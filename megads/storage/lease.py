"""Who holds a folder, in a file that works without locks: on NFS, on Lustre without ``-o flock``, over many hosts.

``lease/000001.json``, ``000002.json``, ... are the holders so far; the one with the highest number holds the folder.
What this relies on, and all of it holds on NFS from version 3 on and on Lustre:

* A file that is made under a name by ``link``, or with ``O_EXCL`` where links do not exist, is made by one process
  only. When an answer is lost the call may fail although the file was made, so its inode is compared.
* ``open`` asks the server: who opens a file after another host has written and closed it reads what was written.
* Nobody compares the clocks of two hosts, or the times of files. A holder changes a number in its record every
  :data:`RENEWS_S`; whoever wants the folder reads the record until the number has stayed the same for the seconds that
  the record names, by its own clock.

A record is rewritten in place: a file of the same name that takes its place would be hidden by caches of names. Who
takes over writes its own record into the second block of the old file, where the old holder, if it is alive after all,
finds it when it renews its lease and before it publishes a checkpoint.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from megads.storage.checksums import NO_CRC, is_sealed, seal
from megads.storage.reading import parse_json
from megads.text.units import duration

FOLDER = "lease"
RENEWS_S = 2.0
EXPIRES_S = 30.0
"""Without a renewal, after which another host may take the folder."""
BLOCK = 4096
"""Bytes of a record; the second one of a file is that of the holder after it."""
_TRIES = 20  # to read a record that is being written
_KEPT = 8  # files of earlier holders


@dataclass(frozen=True)
class Holder:
    """Who holds a folder, or did.

    ``place`` is the running system and its table of processes: a process id says something only there. ``born`` is
    when the process started, in the system's ticks; ``beat`` changes while the holder is alive.
    """

    host: str
    job: str  # the scheduler's id; empty: no batch job
    user: str
    pid: int
    started: float  # unix seconds, for people
    token: str = ""
    place: str = ""
    born: int = 0
    beat: int = 0
    expires_s: float = EXPIRES_S
    is_over: bool = False

    def text(self) -> str:
        """Return who it is, as ``job 17 of ann on nid0042, process 911, for 2h03m``."""
        job = f"job {self.job} of {self.user}" if self.job else self.user
        return f"{job} on {self.host}, process {self.pid}, for {duration(max(0.0, time.time() - self.started))}"

    def is_here(self) -> bool:
        """Return whether its process id is one of this system's."""
        return bool(self.place) and (self.host, self.place) == (socket.gethostname(), _place())

    def runs(self) -> bool:
        """Return whether its process is there; only where :meth:`is_here`."""
        return _born(self.pid) == self.born != 0


class LeaseLost(Exception):
    """Another one holds the folder now; ``holder`` says who."""

    def __init__(self, holder: Holder):
        super().__init__(holder.text())
        self.holder = holder


def this_process(job: str) -> Holder:
    """Return this process as a holder, with a new token."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    pid, host = os.getpid(), socket.gethostname()
    return Holder(host, job, user, pid, time.time(), secrets.token_hex(8), _place(), _born(pid))


@dataclass
class Lease:
    """The lease of a folder that this process, or the one that started it, got by :func:`take`."""

    path: Path  # of the record
    holder: Holder

    def renew(self) -> None:
        """Show that the holder is alive.

        Raises:
            LeaseLost: another one has taken the folder.
            OSError: the file system has a bad moment.
        """
        self.check()
        self.holder = replace(self.holder, beat=time.monotonic_ns())
        _write(self.path, self.holder)

    def check(self) -> None:
        """Return when the folder is still held; errors as of :meth:`renew`."""
        after = _read(self.path, BLOCK)
        if after is not None:
            raise LeaseLost(after)

    def release(self) -> None:
        """Let the next one have the folder at once; nothing happens when another one has it already."""
        with suppress(OSError, LeaseLost):
            self.check()
            self.holder = replace(self.holder, is_over=True)
            _write(self.path, self.holder)

    @contextmanager
    def kept(self, lost: Callable[[LeaseLost], None]) -> Iterator[None]:
        """Renew the lease from a thread while the block runs; ``lost`` is called once when another one has it.

        The thread does not survive ``exec``; the program that follows keeps the lease itself.
        """
        end = threading.Event()

        def keep() -> None:
            while not end.wait(RENEWS_S):
                try:
                    self.renew()
                except LeaseLost as error:
                    lost(error)
                    return
                except OSError:
                    continue  # the next one may work; until then the lease ages

        thread = threading.Thread(target=keep, name="megads-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def holder_of(folder: Path) -> Holder | None:
    """Return who holds ``folder``, or was the last to; None when nobody was. OSError where it cannot be read."""
    found = _numbers(folder)
    return _read(_path(folder, found[-1])) if found else None


def lease_of(folder: Path, token: str) -> Lease | None:
    """Return the lease with ``token``, which the program that started this one took; None when it is gone."""
    for number in reversed(_numbers(folder)):
        found = _read(_path(folder, number))
        if found is not None and found.token == token:
            return Lease(_path(folder, number), found)
    return None


def take(folder: Path, me: Holder, before: Holder | None) -> Lease | None:
    """Take ``folder`` over from ``before``, of whom the caller knows that it is gone; None: another one was faster.

    Raises:
        OSError: the folder cannot be written.
    """
    (folder / FOLDER).mkdir(exist_ok=True)
    found = _numbers(folder)
    newest = _read(_path(folder, found[-1])) if found else None
    if (newest.token if newest else "") != (before.token if before else ""):
        return None
    number = (found[-1] if found else 0) + 1
    path = _path(folder, number)
    if not _make(path, me):
        return None
    if found:
        with suppress(OSError):
            _write(_path(folder, found[-1]), me, BLOCK)
    # The list of before may have been an old one; the new file made this client forget it.
    if _numbers(folder)[-1:] != [number]:
        with suppress(OSError):
            path.unlink()
        return None
    for old in found[:-_KEPT]:
        with suppress(OSError):
            _path(folder, old).unlink()
    return Lease(path, me)


def stays_the_same(folder: Path, holder: Holder, watch_s: float, pause: Callable[[float], None] = time.sleep) -> bool:
    """Return whether ``holder`` did not renew its lease for ``watch_s``, and nobody else took it.

    Raises:
        OSError: the folder cannot be read.
    """
    until = time.monotonic() + watch_s
    while True:
        seen = holder_of(folder)
        if seen is None or (seen.token, seen.beat, seen.is_over) != (holder.token, holder.beat, holder.is_over):
            return False
        left = until - time.monotonic()
        if left <= 0:
            return True
        pause(min(left, RENEWS_S / 4))


def _path(folder: Path, number: int) -> Path:
    return folder / FOLDER / f"{number:06d}.json"


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder / FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())


def _block(holder: Holder) -> bytes:
    """Return the record, always of the same length."""
    text = json.dumps({"crc32": NO_CRC, **asdict(holder)})
    return seal(f"{text:{BLOCK - 1}}\n").encode()


def _make(path: Path, holder: Holder) -> bool:
    """Make the file of a new holder; return whether it was made here."""
    own = path.with_name(f".{holder.token}")
    handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _put(handle, _block(holder), 0)
        os.fsync(handle)
        with suppress(OSError):  # what counts is whose inode it is
            os.link(own, path)
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(path), os.fstat(handle))
    finally:
        os.close(handle)
        with suppress(OSError):
            own.unlink()
    return _make_without_links(path, holder)


def _make_without_links(path: Path, holder: Holder) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        found = _read(path)  # an answer that was lost leaves an empty file, which ages
        return found is not None and found.token == holder.token
    try:
        _put(handle, _block(holder), 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def _write(path: Path, holder: Holder, at: int = 0) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        _put(handle, _block(holder), at)
    finally:
        os.close(handle)


def _put(handle: int, content: bytes, at: int) -> None:
    while content:
        done = os.pwrite(handle, content, at)
        content, at = content[done:], at + done


def _read(path: Path, at: int = 0) -> Holder | None:
    """Return a record; None: there is none. One that is being written is read again.

    One that cannot be read is that of an unknown holder, who is alive while the bytes change.

    Raises:
        OSError: the file system failed, other than by having no such file.
    """
    for left in reversed(range(_TRIES)):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            raw = os.pread(handle, BLOCK, at)
        finally:
            os.close(handle)
        if not raw and at:
            return None  # in the first block there is a record, or soon will be
        with suppress(ValueError, TypeError, KeyError):
            return _parsed(raw)
        if left:
            time.sleep(0.01)
    return Holder("an unknown host", "", "somebody", 0, time.time(), token=f"{zlib.crc32(raw):08x}-{len(raw)}")


def _parsed(raw: bytes) -> Holder:
    given = parse_json(raw)
    if len(raw) != BLOCK or not is_sealed(raw, given["crc32"]):
        raise ValueError("half a record")
    known: dict[str, Any] = {each.name: given[each.name] for each in fields(Holder)}
    return Holder(**known)


def _place() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _born(pid: int) -> int:
    """Return when a process started, in ticks since this system did; 0: it is not there, or ends now."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf8", errors="replace").rpartition(")")[2].split()
        return 0 if stat[0] in "ZX" else int(stat[19])
    return 0
