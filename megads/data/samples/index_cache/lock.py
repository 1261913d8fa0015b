"""One builder at a time, on any file system, and none that waits for a dead one.

The lock is a file that only one process can create. It saves work and nothing depends on it:
an index is renamed into place whole, so two builders at once would make the same file twice.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from megads.storage.reading import Bounds, parse_json, read_bytes

BEAT_S = 5.0
"""The holder touches its lock this often."""

SILENT_S = 60.0
"""A lock that was not touched for so long is nobody's; file systems show a change on another host up to this late."""

NAMELESS_S = 2.0
"""A lock that does not say whose it is belongs to a process that was killed before it could write."""

_MOST = 1 << 16  # bytes of a lock file


class Lock:
    """A lock file; use it in a ``with`` block that begins when :meth:`take` returned True.

    Args:
        path: of the lock file.
        busy_s: how long the holder may be busy without touching it, beyond :data:`SILENT_S`.
    """

    def __init__(self, path: Path, busy_s: float = 0.0):
        self.path = path
        self._busy_s = busy_s
        self._seen: tuple[bytes, int] = (b"", 0)
        self._since = 0.0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._mine = b""

    def take(self) -> bool:
        """Create the lock file; return False if somebody holds it.

        Raises:
            OSError: the folder cannot be written.
        """
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            self._look()
            return False
        about = {"host": socket.gethostname(), "pid": os.getpid(), "began": _began(os.getpid()), "busy_s": self._busy_s}
        self._mine = json.dumps(about).encode()
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._mine)
        except OSError:
            self._remove()
            raise
        return True

    def __enter__(self) -> Lock:
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        # Somebody may have taken this process for dead; its lock stays.
        if self._read() == self._mine:
            self._remove()

    def _beat(self) -> None:
        while not self._done.wait(BEAT_S):
            try:
                os.utime(self.path)
            except OSError:
                return

    def _look(self) -> None:
        """Remove the lock of a holder that is gone."""
        content = self._read()
        try:
            touched = os.stat(self.path).st_mtime_ns
        except OSError:
            return
        now = time.monotonic()
        if (content, touched) != self._seen:
            self._seen, self._since = (content, touched), now
        about = _parse(content)
        patience_s = SILENT_S + about["busy_s"] if about else NAMELESS_S
        if _is_dead(about) or now - self._since > patience_s:
            self._remove()

    def _read(self) -> bytes:
        # Opened again: that is when network file systems ask for what is there now.
        try:
            return read_bytes(self.path, _MOST)
        except (OSError, Bounds):
            return b""

    def _remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            return


def _parse(content: bytes) -> dict[str, Any]:
    """Return what a lock file says; nothing of one whose holder was killed before it could write."""
    try:
        about = parse_json(content)
        return {
            "host": str(about["host"]),
            "pid": int(about["pid"]),
            "began": about["began"],
            "busy_s": about["busy_s"],
        }
    except (ValueError, KeyError, TypeError):
        return {}


def _is_dead(about: dict[str, Any]) -> bool:
    """Return whether the holder ran on this host and is gone."""
    if about.get("host") != socket.gethostname():
        return False
    # Another process may have its number by now.
    return not is_running(about["pid"]) or bool(about["began"] != _began(about["pid"]))


def is_running(pid: int) -> bool:
    """Return whether this host has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _began(pid: int) -> str:
    """Return when a process of this host started, in ticks of its kernel; empty where nobody knows."""
    try:
        state, *words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    # One that ended and whose parent has not looked yet still has its number.
    return "ended" if state in "ZX" else words[18]
