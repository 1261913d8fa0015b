"""One host's part of staging: fetch the archive, verify it, unpack it on the own disk, pass it on to other hosts.

``python -I -S agent.py`` on every host. Only the standard library is imported, so that thousands of hosts
that start it at once read little. What to do comes from :mod:`megads.launch.staging.registry`, one line of JSON per
message; a secret of the launch begins every connection.

    <folder>/<name>/        the archive's content, complete when it has this name
    <folder>/<name>/.files  size of every file
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import shutil
import socket
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

AT, SECRET = "MEGADS_STAGE_AT", "MEGADS_STAGE_SECRET"
LONGEST = 1 << 16  # bytes of a message
"""Variables of an agent: ``PORT ADDRESS ADDRESS ...`` of the registry, and the secret of the launch."""

FILES = ".files"
READ = 1 << 20
CONNECT_S, SILENT_S = 5.0, 120.0
"""To reach an address, and without a byte of the archive, before it is asked for elsewhere."""
SPARE = 64 << 20
"""Bytes that stay free on the disk."""


class StageError(Exception):
    """Why a host has no environment, in one line."""


class Lines:
    """Messages over a connection, one line of JSON each."""

    def __init__(self, link: socket.socket):
        self.link, self._file = link, link.makefile("rb")

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; empty: the other side is gone, or is not one of ours."""
        line = self._file.readline(LONGEST)
        try:
            found = json.loads(line) if line.endswith(b"\n") else {}
        except (ValueError, RecursionError):  # a stranger
            return {}
        return found if isinstance(found, dict) else {}


class Server(threading.Thread):
    """Sends an archive to whoever knows the secret."""

    def __init__(self, path: Path, secret: str):
        super().__init__(daemon=True)
        self.path, self.secret, self.num_sent = path, secret, 0
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self.listener = socket.create_server(
            ("", 0), family=family, backlog=512, dualstack_ipv6=socket.has_dualstack_ipv6()
        )
        self.port = int(self.listener.getsockname()[1])

    def run(self) -> None:
        """Accept connections until :meth:`close`."""
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._send, args=(link,), daemon=True).start()

    def _send(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            link.settimeout(SILENT_S)
            asked = b""
            while len(asked) < len(self.secret):
                part = link.recv(len(self.secret) - len(asked))
                if not part:
                    return
                asked += part
            if hmac.compare_digest(asked, self.secret.encode()):
                with self.path.open("rb") as file:
                    link.sendfile(file)
                self.num_sent += 1

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up that accepts
        self.listener.close()


def connect(env: dict[str, str]) -> tuple[Lines, str]:
    """Return a connection to the registry, and the address at which it was reached.

    Raises:
        StageError: no address answers.
    """
    port, *addresses = env[AT].split()
    problem = "no address"
    for address in addresses:
        try:
            link = socket.create_connection((address, int(port)), CONNECT_S)
        except OSError as error:
            problem = f"{address}: {error.strerror or error}"
            continue
        link.settimeout(None)
        return Lines(link), address
    raise StageError(f"does not reach the host that stages, port {port} ({problem})")


def own_folder(folder: Path) -> None:
    """Make ``folder``, for this user alone, or check that it is.

    Raises:
        StageError: somebody else could put programs there.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StageError(
            f"{folder}: {str(error.strerror).lower()}; pass another folder with --to (STAGE_DIR)"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StageError(f"{folder}: is not a folder that only you can write; pass another one with --to (STAGE_DIR)")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; where the file system has none, nobody waits."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_complete(place: Path) -> bool:
    """Return whether a staged environment has every file it had when it was unpacked, of the same size."""
    try:
        sizes = json.loads((place / FILES).read_text(encoding="utf8"))
        return all(os.lstat(place / name).st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def fetch(address: str, port: int, secret: str, target: Path, digest: str, num_bytes: int) -> None:
    """Fetch an archive from another host, and check it.

    Raises:
        StageError: it does not arrive, or is not what was made.
    """
    found, got = hashlib.sha256(), 0
    try:
        with socket.create_connection((address, port), CONNECT_S) as link, target.open("wb") as file:
            link.settimeout(SILENT_S)
            link.sendall(secret.encode())
            while content := link.recv(READ):
                file.write(content)
                found.update(content)
                got += len(content)
    except OSError as error:
        raise StageError(f"archive from {address}: {str(error.strerror or error).lower()}") from None
    if got != num_bytes:
        raise StageError(f"archive from {address}: {got} of {num_bytes} bytes arrived")
    if found.hexdigest() != digest:
        raise StageError(f"archive from {address}: its SHA-256 differs")


def unpack(archive: Path, place: Path) -> None:
    """Unpack ``archive`` as ``place``, which appears when it is complete.

    Raises:
        StageError: the disk is full or fails, or a name leads elsewhere.
    """
    temporary = place.with_name(f"{place.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(mode=0o700)
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = Path(member.name).parts
                if member.name.startswith("/") or ".." in parts or not (member.isfile() or member.issym()):
                    raise StageError(f"archive: {member.name} is not a name in it")
                _write(tar, member, temporary / member.name)
        _move(temporary, place)
        files = (path for path in temporary.rglob("*") if path.is_file() or path.is_symlink())
        sizes = {str(path.relative_to(temporary)): path.lstat().st_size for path in files}
        (temporary / FILES).write_text(json.dumps(sizes), encoding="utf8")
        shutil.rmtree(place, ignore_errors=True)
        temporary.replace(place)
    except OSError as error:
        raise StageError(f"{error.filename or place}: {str(error.strerror or error).lower()}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
        return
    content = tar.extractfile(member)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "wb") as file:
        assert content is not None  # it is a file
        shutil.copyfileobj(content, file, READ)
        os.fchmod(file.fileno(), member.mode)
    os.utime(path, (member.mtime, member.mtime))  # compiled files name the time of their source


def _move(temporary: Path, place: Path) -> None:
    """Have an environment work from ``place``: its programs name their Python, and it the one it was made with."""
    note = json.loads((temporary / "stage.json").read_text(encoding="utf8"))
    settings = temporary / "env" / "pyvenv.cfg"
    if "base" in note and settings.is_file():
        lines = settings.read_text(encoding="utf8").splitlines()
        moved = [f"home = {place / 'base' / 'bin'}" if line.split("=")[0].strip() == "home" else line for line in lines]
        settings.write_text("\n".join([*moved, ""]), encoding="utf8")
    for name in ("env", "base"):
        folder, was = temporary / name / "bin", f"#!{note.get(name, '')}/bin/".encode()
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                if file.read(len(was)) != was:
                    continue
                rest = file.read()
            mode = path.stat().st_mode
            path.write_bytes(f"#!{place / name}/bin/".encode() + rest)
            path.chmod(stat.S_IMODE(mode))


def remove_old(folder: Path, keep: str, max_age_s: float) -> int:
    """Remove what is staged and was not used for ``max_age_s``, except for the archive ``keep``; return how many."""
    removed = 0
    for path in folder.iterdir():
        with suppress(OSError):
            if path.name.split(".")[0] == keep or time.time() - path.stat().st_mtime < max_age_s:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            removed += 1
    return removed


class Agent:
    """This host's part."""

    def __init__(self, lines: Lines, address: str, secret: str, folder: str = ""):
        self.lines, self.address, self.secret = lines, address, secret
        self.folder = folder  # instead of what the registry says, for several agents on one host
        self.server: Server | None = None

    def work(self) -> int:
        """Do what the registry says; return the exit code: 0 also for a problem that is reported, or all would end."""
        self.lines.send(secret=self.secret, host=socket.gethostname())
        job = self.lines.receive()
        if not job:
            return 1
        folder = Path(self.folder or job["folder"])
        try:
            own_folder(folder)
            if job["action"] == "clean":
                return self._end(removed=remove_old(folder, "", 0.0))
            with locked(folder / f"{job['name']}.lock"):
                self._stage(folder, job)
        except StageError as error:
            return self._end(problem=str(error))
        except OSError as error:
            return self._end(problem=f"{error.filename or folder}: {str(error.strerror or error).lower()}")
        return 0

    def _end(self, **what: Any) -> int:
        self.lines.send(state="ended", **what)
        self.lines.receive()
        return 0

    def _stage(self, folder: Path, job: dict[str, Any]) -> None:
        place, archive = folder / job["name"], folder / f"{job['name']}.tar"
        remove_old(folder, job["name"], job["max_age_s"])
        if is_complete(place):
            os.utime(place)
            self._end(reused=True)
            return
        free = shutil.disk_usage(folder).free
        needed = 2 * job["num_bytes"] + SPARE
        if free < needed:
            raise StageError(
                f"{folder}: {free / 1e9:.1f} GB free, archive and files need {needed / 1e9:.1f} GB; "
                "pass another folder with --to (STAGE_DIR)"
            )
        try:
            self._fetch(archive, job)
            self.server = Server(archive, self.secret)
            self.server.start()
            # Others may have it while it is unpacked here.
            self.lines.send(state="fetched", port=self.server.port)
            unpack(archive, place)
            self._end()
            self.server.close()
        finally:
            archive.unlink(missing_ok=True)

    def _fetch(self, archive: Path, job: dict[str, Any]) -> None:
        problem = ""
        while True:
            self.lines.send(state="wants", problem=problem)
            source = self.lines.receive()
            if not source:
                raise StageError(problem or "the host that stages is gone")
            try:
                address = source["address"] or self.address
                fetch(address, source["port"], self.secret, archive, job["digest"], job["num_bytes"])
                return
            except StageError as error:
                problem = str(error)


def main(env: dict[str, str], folder: str = "") -> int:
    """Be the agent of this host."""
    try:
        lines, address = connect(env)
    except StageError as error:
        sys.stderr.write(f"megads stage: {socket.gethostname()} {error}\n")
        return 1
    return Agent(lines, address, env[SECRET], folder).work()


if __name__ == "__main__":
    sys.exit(main(dict(os.environ), *sys.argv[1:]))
