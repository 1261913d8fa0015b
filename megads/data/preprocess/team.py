"""Several processes that make one data set: they meet in a folder next to the output that all of them see.

No message passing is needed, so whatever starts them will do. Each process writes a small file about
itself, the first one a file about the run; all of them begin with a number drawn at the start of the
process, so that nobody believes what an earlier run left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from megads.data.preprocess.progress import Done
from megads.errors import DataError
from megads.storage.reading import read_json

WAIT_S = 300.0
"""Seconds without a sign of life after which a process is given up."""

_BEAT_S = 1.0
_DISMISS_TRIES, _FAIL_TRIES = 20, 100  # tenths of a second
_LEADER = "leader.json"

WORKING, DONE, FAILED = "working", "done", "failed"


class EndedByLeader(Exception):
    """This process ends because another one failed; the leader reports why."""


@dataclass
class Team:
    """Process ``rank`` of ``size``. All methods return at once, but :meth:`begin`, :meth:`follow` and :meth:`wait`."""

    rank: int
    size: int
    folder: Path
    patience_s: float = WAIT_S
    alive: Callable[[], None] = lambda: None  # raises when a process is known to be dead
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _ids: dict[str, str] = field(default_factory=dict)  # leader: of each rank
    _others: dict[int, dict[str, Any]] = field(default_factory=dict)  # leader: the last content of each rank's file
    _seen: dict[int, float] = field(default_factory=dict)  # when that changed
    _state: dict[str, Any] = field(default_factory=dict)
    _beat: int = 0
    _last: float = 0.0

    def begin(self) -> None:
        """Leader: forget earlier runs. Others: wait for the leader to know this process."""
        if self.size == 1:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            for path in self.folder.glob("[!.]*"):  # what is being written begins with a dot
                path.unlink(missing_ok=True)
            self._seen = dict.fromkeys(range(1, self.size), time.monotonic())
            self._write_leader(WORKING)
            return
        self._write_own(WORKING, Done())

    def follow(self, check: Callable[[], None]) -> str:
        """Others: wait until the leader names the work to do, and return its digest; "" for none.

        ``check`` is called now and then; it may raise to stop.

        Raises:
            EndedByLeader: the leader failed.
            DataError: there is no sign of it.
        """
        began = time.monotonic()
        while True:
            # The leader may have removed what this process wrote before the leader began.
            if not self._path(self.rank).exists():
                self._write_own(WORKING, Done())
            if found := self._read_leader():
                if found["state"] == FAILED:
                    self._leave()
                if found["state"] == DONE:
                    self._path(self.rank).unlink(missing_ok=True)
                    return ""
                if found["digest"]:
                    return str(found["digest"])
            check()
            if time.monotonic() - began > self.patience_s:
                raise DataError(f"rank {self.rank}: no sign of rank 0 in {self.folder} for {self.patience_s:.0f} s")
            time.sleep(0.05)

    def go(self, digest: str) -> None:
        """Leader: let the others begin."""
        if self.size > 1:
            self._state["digest"] = digest
            self._write_leader(WORKING)

    def tick(self, done: Done) -> Done:
        """Share how far this process is; return how far all are that it knows of.

        Raises:
            EndedByLeader: another process failed, and the leader knows.
            DataError: leader: what a process failed of, or that there is no sign of it.
        """
        if self.size > 1 and time.monotonic() - self._last >= _BEAT_S:
            self._last = time.monotonic()
            if self.rank == 0:
                self._lead()
            else:
                self.alive()
                self._write_own(WORKING, done)
                self._check_leader()
        return self._total(done)

    def wait(self, done: Done, check: Callable[[Done], None]) -> None:
        """Leader: wait until all others are done; ``check`` is called all the time with how far all are."""
        while self.size > 1:
            self._lead()
            check(self._total(done))
            if len(self._others) == self.size - 1 and all(each["state"] == DONE for each in self._others.values()):
                return
            time.sleep(0.1)

    def finish(self, done: Done) -> None:
        """Leader: remove the folder. Others: note that the part is complete."""
        if self.size == 1:
            return
        if self.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._write_own(DONE, done)

    def _lead(self) -> None:
        self.alive()
        self._read_others()
        self._write_leader(WORKING)

    def _total(self, done: Done) -> Done:
        return sum((Done(**each["done"]) for each in self._others.values()), done)

    def fail(self, message: str) -> None:
        """Let the others end. Others: leave it to the leader to report, and raise EndedByLeader when it does."""
        if self.size == 1:
            return
        with suppress(OSError):
            if self.rank == 0:
                self.end_others(FAILED)
                return
            for _ in range(_FAIL_TRIES):
                # The leader may have removed what this process wrote before the leader began.
                if not self._path(self.rank).exists() or self._state.get("said") != FAILED:
                    self._write_own(FAILED, Done(), message)
                found = self._read_leader()
                if found and found["state"] == FAILED:
                    self._leave()
                time.sleep(0.1)

    def end_others(self, state: str = DONE) -> None:
        """Leader: end the others, also those who come late; remove the folder when all have gone."""
        for _ in range(_DISMISS_TRIES if self.size > 1 else 0):
            for rank in range(1, self.size):
                found = _read(self._path(rank))
                if found is not None:
                    self._ids[str(rank)] = found["me"]
            self._write_leader(state)
            if len(self._ids) == self.size - 1 and not any(self._path(rank).exists() for rank in range(1, self.size)):
                shutil.rmtree(self.folder, ignore_errors=True)
                return
            time.sleep(0.1)

    def _leave(self) -> NoReturn:
        """Others: the leader failed, or knows what failed."""
        with suppress(OSError):
            self._path(self.rank).unlink(missing_ok=True)
        time.sleep(0.2)  # some launchers end everybody when one process fails; the leader speaks first
        raise EndedByLeader

    def _read_others(self) -> None:
        """Leader: read the files of the others."""
        for rank in range(1, self.size):
            found = _read(self._path(rank))
            if found is None:
                continue
            if found != self._others.get(rank):
                self._others[rank], self._seen[rank] = found, time.monotonic()
                self._ids[str(rank)] = found["me"]
            if found["state"] == FAILED:
                raise DataError(found["message"])
        for rank, when in self._seen.items():
            done = self._others.get(rank, {}).get("state") == DONE
            if not done and time.monotonic() - when > self.patience_s:
                where = f" on {self._others[rank]['host']}" if rank in self._others else ""
                raise DataError(
                    f"no sign of rank {rank}{where} for {self.patience_s:.0f} s; rerun the same command to resume"
                )

    def _check_leader(self) -> None:
        found = _read(self.folder / _LEADER)
        name = found["names"].get(str(self.rank)) if found is not None else None
        if name not in (None, self._id):
            raise EndedByLeader  # the leader was killed, and here is the next one with a process in this one's place
        if found is not None and found["state"] == FAILED:
            self._leave()
        key = (found or {}).get("beat")
        if key != self._state.get("beat") or "heard" not in self._state:
            self._state.update(beat=key, heard=time.monotonic())
        elif time.monotonic() - self._state["heard"] > self.patience_s:
            raise DataError(f"rank {self.rank}: no sign of rank 0 for {self.patience_s:.0f} s")

    def _read_leader(self) -> dict[str, Any] | None:
        """Return the file of the leader of this run; an earlier run's does not know this process."""
        found = _read(self.folder / _LEADER)
        return found if found is not None and found["names"].get(str(self.rank)) == self._id else None

    def _write_leader(self, state: str) -> None:
        self._beat += 1
        digest = self._state.get("digest", "")
        _write(self.folder / _LEADER, {"names": self._ids, "digest": digest, "state": state, "beat": self._beat})

    def _write_own(self, state: str, done: Done, message: str = "") -> None:
        self._beat += 1
        self._state["said"] = state
        content = {"me": self._id, "host": socket.gethostname(), "state": state, "message": message, "beat": self._beat}
        _write(self._path(self.rank), {**content, "done": vars(done)})

    def _path(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = read_json(path)
    except (FileNotFoundError, ValueError):
        return None
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{socket.gethostname()}")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
