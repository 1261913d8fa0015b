"""What happened on hosts, in all jobs (``.megads/nodes.jsonl`` in the working folder, or ``MEGADS_NODES``).

A host counts as bad because it failed a check, or because drivers or the scheduler named it
twice. What happened fades: it counts half after a week, and half again whenever the host passes a
check. Ends of which nobody knows the cause, and those of the network or a disk, count nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from megads.monitor.rows import Damage, parse_rows, sealed
from megads.storage.reading import read_bytes
from megads.text.units import duration

PLACE = "MEGADS_NODES"
"""Variable with the path of the file; empty: :data:`FILE` in the working folder."""
FILE = ".megads/nodes.jsonl"
HALF_LIFE_S = 7 * 86400.0
BAD = 1.4
"""From this weight on a host is left out where there is another one."""

What = Literal["failed", "broken", "healthy", "forgotten"]
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK  # the last: a pipe that nobody reads is refused, not waited for
WEIGHTS = {"failed": 1.0, "broken": 2.0}
"""Of a host that was named when a run failed, and of one that failed a check."""


@dataclass(frozen=True)
class NodeEvent:
    """Something that happened on a host; ``forgotten`` is a person who had it repaired."""

    time: float
    machine: str
    host: str
    what: What
    job: str = ""
    cause: str = ""
    why: str = ""


@dataclass(frozen=True)
class NodeRecord:
    """A host, how much speaks against it, and why."""

    host: str
    weight: float
    why: str

    @property
    def is_bad(self) -> bool:
        """Return whether the host is to be left out."""
        return self.weight >= BAD


@dataclass(frozen=True)
class NodeMemory:
    """The events of one machine's hosts, in a file that many jobs write to."""

    path: Path
    machine: str

    @classmethod
    def of(cls, machine: str, env: Mapping[str, str]) -> NodeMemory:
        """Return the memory that a command has in this folder."""
        return cls(Path(env.get(PLACE) or FILE), machine)

    def note(self, host: str, what: What, *, job: str = "", cause: str = "", why: str = "") -> str:
        """Add an event and return why it could not be written, empty where it was; a run does not fail for it."""
        event = NodeEvent(time.time(), self.machine, short(host), what, job, cause, why[:500])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self.path, _APPEND | os.O_CREAT, 0o666), "ab") as file:
                # One write, so that lines of two jobs do not mix.
                file.write(f"{sealed(json.dumps(asdict(event)))}\n".encode())
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def problem(self) -> str:
        """Return why :meth:`note` could not add an event, as far as that shows without writing; empty: it could."""
        try:
            os.close(os.open(self.path, _APPEND))
        except FileNotFoundError:
            there = next(each for each in self.path.absolute().parents if os.path.lexists(each))
            return "" if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def events(self) -> list[NodeEvent]:
        """Return what happened on this machine, oldest first; lines that changed are skipped and reported."""
        damage = Damage(only_rows=True)
        try:
            rows = parse_rows(read_bytes(self.path), damage)
        except OSError:
            return []
        damage.report(self.path)
        return [event for event in map(_event, rows) if event is not None and event.machine == self.machine]

    def records(self, now: float | None = None) -> list[NodeRecord]:
        """Return the hosts that something speaks against, the worst first."""
        now = time.time() if now is None else now
        weights: dict[str, float] = {}
        last: dict[str, NodeEvent] = {}
        for event in self.events():
            before = weights.get(event.host, 0.0)
            if event.what == "forgotten":
                weights[event.host] = 0.0
            elif event.what == "healthy":
                weights[event.host] = before / 2
            else:
                age = max(0.0, now - event.time)
                weights[event.host] = before + WEIGHTS[event.what] * 0.5 ** (age / HALF_LIFE_S)
                last[event.host] = event
        found = [NodeRecord(host, weight, _why(last[host], now)) for host, weight in weights.items() if weight > 0.01]
        return sorted(found, key=lambda record: (-record.weight, record.host))

    def bad_hosts(self, now: float | None = None) -> dict[str, NodeRecord]:
        """Return the hosts to leave out, by their short names."""
        return {record.host: record for record in self.records(now) if record.is_bad}


def short(host: str) -> str:
    """Return a host's name without its domain; an address stays whole."""
    return host if host.replace(".", "").isdigit() else host.split(".")[0]


def _why(event: NodeEvent, now: float) -> str:
    job = f" in job {event.job}" if event.job else ""
    return f"{event.what} {duration(max(0.0, now - event.time))} ago{job}: {event.why}"


def _event(row: Mapping[str, Any]) -> NodeEvent | None:
    known = {each.name: row.get(each.name, "") for each in fields(NodeEvent)}
    when = known.pop("time")
    if isinstance(when, bool) or not isinstance(when, int | float) or not 0 < when < 1e12:
        return None
    if not all(isinstance(value, str) for value in known.values()):
        return None
    if known["what"] not in (*WEIGHTS, "healthy", "forgotten"):
        return None
    return NodeEvent(time=float(when), **known)
