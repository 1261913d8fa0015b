"""Stages of a check: what each found, the line that says so, and a limit on its time. Without torch."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from megads.text.plural import noun_for, plural

Status = Literal["ok", "failed", "skipped"]

OPTIONS = "doctor.json"  # from `megads doctor` to its ranks
RECORD = "health.jsonl"  # what rank 0 found, one stage a line

MOST_HOSTS = 8
"""That one line names."""


@dataclass(frozen=True)
class Verdict:
    """What one stage found."""

    status: Status
    text: str = ""  # the reason, or what was seen, on one line
    notes: tuple[str, ...] = ()  # lines about what is not wrong and should be known all the same
    details: tuple[str, ...] = ()  # further lines, such as a table
    data: Any = None  # numbers for --json


@dataclass(frozen=True)
class Finding:
    """The verdict of a stage and how long it took."""

    stage: str
    verdict: Verdict
    seconds: float

    def lines(self) -> str:
        """Return the stage's line, and below it notes and details."""
        found = self.verdict
        head = f"{self.stage:<14} {found.status:<8} {self.seconds:6.1f} s  {found.text}".rstrip()
        below = [*(f"note: {note}" for note in found.notes), *found.details]
        return "".join(f"{line}\n" for line in (head, *(f"{'':15}{line}".rstrip() for line in below)))

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for ``--json``."""
        found = asdict(self.verdict)
        return {"stage": self.stage, "status": found["status"], "seconds": round(self.seconds, 3), **found}


def finding_of(saved: Mapping[str, Any]) -> Finding:
    """Return the finding that :meth:`Finding.as_dict` gave."""
    known = {each.name: saved[each.name] for each in fields(Verdict)}
    verdict = Verdict(**known | {"notes": tuple(known["notes"]), "details": tuple(known["details"])})
    return Finding(saved["stage"], verdict, saved["seconds"])


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line: whether all is right, and what was not looked at."""
    by_status: dict[str, list[str]] = {"ok": [], "failed": [], "skipped": []}
    for each in findings:
        by_status[each.verdict.status].append(each.stage)
    notes = sum(len(each.verdict.notes) for each in findings)
    head = f"WRONG: {', '.join(by_status['failed'])}" if by_status["failed"] else "all right"
    parts = [f"{len(by_status['ok'])} stages ok"]
    if by_status["skipped"]:
        parts.append(f"not checked: {', '.join(by_status['skipped'])}")
    if notes:
        parts.append(plural(notes, "note"))
    return f"{head} ({'; '.join(parts)})"


def which_ranks(ranks: Iterable[int], hosts: Sequence[str]) -> str:
    """Return ``ranks`` with their hosts, as ``rank 3 (host b), ranks 8-11 (host d)``; of many hosts the first.

    Args:
        ranks: global ranks.
        hosts: of every rank; a rank beyond its end has an unknown host.
    """
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(hosts[rank] if rank < len(hosts) else "not known", []).append(rank)
    parts = [
        f"{noun_for(len(found), 'rank')} {spans(found)} (host {host})"
        for host, found in list(by_host.items())[:MOST_HOSTS]
    ]
    left = [len(found) for found in list(by_host.values())[MOST_HOSTS:]]
    if left:
        parts.append(f"and {plural(sum(left), 'rank')} on {len(left)} more hosts")
    return ", ".join(parts)


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ``0-3, 7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)


def some(names: Sequence[str], most: int = MOST_HOSTS) -> str:
    """Return names with commas, of many the first."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass
class Task:
    """Something that a :class:`Worker` does; ``value`` or ``error`` is set when it is done."""

    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: BaseException | None = None


class Worker:
    """A thread that does one thing after another while its owner watches the time.

    The thread is a daemon: one that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="stages")
        self._thread.start()

    def start(self, work: Callable[[], Any]) -> Task:
        """Begin ``work`` and return at once."""
        task = Task(work)
        self._tasks.put(task)
        return task

    def place(self) -> str:
        """Return where the thread is now, from the outside in, as ``file.py:12 function``."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = traceback.extract_stack(frame) if frame else []
        own = str(Path(__file__))
        return " > ".join(
            f"{Path(call.filename).name}:{call.lineno} {call.name}"
            for call in stack
            if call.filename not in (own, threading.__file__)
        )

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task.value = task.work()
            except BaseException as error:  # whatever it is, the owner gets it
                task.error = error
            task.done.set()


@dataclass
class StageRunner:
    """Runs stages here, one after another, each within a limit, and reports each as it ends."""

    limit_s: float  # on one stage
    report: Callable[[Finding], None]
    findings: list[Finding] = field(default_factory=list)
    worker: Worker = field(default_factory=Worker)

    def run(self, stage: str, work: Callable[[], Verdict], *, catch: tuple[type[Exception], ...] = ()) -> Verdict:
        """Return the verdict of ``work``; one of ``catch`` that it raises is a failure, as is the end of the limit."""
        started = time.monotonic()
        task = self.worker.start(work)
        if not task.done.wait(self.limit_s):
            verdict = Verdict("failed", f"not finished in {self.limit_s:g} s: at {self.worker.place()}")
            self.worker = Worker()
        elif isinstance(task.error, catch):
            verdict = Verdict("failed", str(task.error))
        elif task.error is not None:
            raise task.error
        else:
            verdict = task.value
        self.add(Finding(stage, verdict, time.monotonic() - started))
        return verdict

    def add(self, finding: Finding) -> None:
        """Take a finding that somebody else made."""
        self.findings.append(finding)
        self.report(finding)
